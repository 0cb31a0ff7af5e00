import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidTopicError
from millrace.segments import (
    parse_partition_directory_name,
    parse_segment_file_name,
    partition_directory_name,
    segment_file_name,
)
from millrace.segments.names import (
    FUTURE_DIRECTORY,
    LOG,
    MOVED_DIRECTORY,
    SEGMENT_SUFFIXES,
    deleted_directory_name,
    directory_name_under_way,
    parse_directory_name_under_way,
)

topics = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda topic: topic not in (".", ".."))


def test_base_offset_has_twenty_digits() -> None:
    assert segment_file_name(42, LOG) == "00000000000000000042.log"


@given(base_offset=st.integers(0, 2**63 - 1), suffix=st.sampled_from(SEGMENT_SUFFIXES))
def test_segment_names_survive_a_round_trip(base_offset: int, suffix: str) -> None:
    assert parse_segment_file_name(segment_file_name(base_offset, suffix)) == (base_offset, suffix)


@pytest.mark.parametrize("name", ["42.log", "leader-epoch-checkpoint", "00000000000000000042.log.deleted", "x"])
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_file_name(name) is None


@given(topic=topics, partition=st.integers(0, 2**31 - 1))
def test_names_of_partition_directories_survive_a_round_trip(topic: str, partition: int) -> None:
    assert parse_partition_directory_name(partition_directory_name(topic, partition)) == (topic, partition)


@pytest.mark.parametrize("name", ["orders", "orders-", "-1", "a b-1", "..-1", "orders-0.abc-delete"])
def test_other_directories_are_no_partitions(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="not the name of a partition directory"):
        parse_partition_directory_name(name)


@given(topic=topics)
def test_deleted_directory_fits_a_file_name(topic: str) -> None:
    name = deleted_directory_name(topic, 12, "f" * 32)
    assert len(name) <= 255
    assert name.endswith(f"-12.{'f' * 32}-delete")
    with pytest.raises(InvalidTopicError):
        parse_partition_directory_name(name)


@pytest.mark.parametrize(("topic_length", "name_length"), [(211, 254), (212, 255), (213, 255), (249, 255)])
def test_the_topic_is_cut_in_a_name_that_would_be_too_long(topic_length: int, name_length: int) -> None:
    name = deleted_directory_name("t" * topic_length, 12, "f" * 32)
    assert len(name) == name_length
    assert name.endswith(f"t-12.{'f' * 32}-delete")


@given(topic=topics, partition=st.integers(0, 2**31 - 1), suffix=st.sampled_from((FUTURE_DIRECTORY, MOVED_DIRECTORY)))
def test_names_of_copies_survive_a_round_trip(topic: str, partition: int, suffix: str) -> None:
    name = f"{topic}-{partition}.{'0a' * 16}{suffix}"
    assert parse_directory_name_under_way(name) == (topic, partition, suffix)
    if len(name) <= 255:
        assert directory_name_under_way(topic, partition, "0a" * 16, suffix) == name


@pytest.mark.parametrize("name", ["a-1", "a-1.0a-future", f"a-1.{'0a' * 16}-delete", f"a.{'0a' * 16}-future"])
def test_other_directories_are_no_copies(name: str) -> None:
    assert parse_directory_name_under_way(name) is None


def test_a_topic_can_be_moved_if_the_name_of_the_copy_fits_a_file_name() -> None:
    tail = f"-12.{'f' * 32}-future"
    longest = "t" * (255 - len(tail))
    assert directory_name_under_way(longest, 12, "f" * 32, FUTURE_DIRECTORY) == longest + tail
    with pytest.raises(InvalidTopicError, match="1 characters too long"):
        directory_name_under_way(longest + "t", 12, "f" * 32, FUTURE_DIRECTORY)

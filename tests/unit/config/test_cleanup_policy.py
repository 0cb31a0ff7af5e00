from __future__ import annotations

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("policy", "is_compacted", "is_deleted"),
    [
        ("delete", False, True),
        ("compact", True, False),
        ("compact,delete", True, True),
        ("delete, compact", True, True),
        (" compact ", True, False),
        ("", False, False),
    ],
)
def test_a_policy_says_what_becomes_of_old_records(policy: str, is_compacted: bool, is_deleted: bool) -> None:
    config = TopicConfig.load({"cleanup.policy": policy})
    assert (config.is_compacted, config.is_deleted) == (is_compacted, is_deleted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cleanup.policy": "keep"}, "expected delete, compact, compact,delete or no policy"),
        ({"cleanup.policy": ","}, "expected delete, compact, compact,delete or no policy"),
        ({"cleanup.policy": "delete,"}, "expected delete, compact, compact,delete or no policy"),
        ({"segment.ms": "0"}, "segment.ms"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}, "min.compaction.lag.ms=10 is above"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "min.cleanable.dirty.ratio"),
        ({"compression.gzip.level": "0"}, "expected 1 to 9, or -1"),
    ],
)
def test_a_wrong_value_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        TopicConfig.load(options)
    assert message in caught.value.message


def test_a_compacted_topic_rolls_early_enough_for_its_longest_lag() -> None:
    lag = {"max.compaction.lag.ms": "1000"}
    assert TopicConfig.load({"cleanup.policy": "compact", **lag}).roll_ms == 1000
    assert TopicConfig.load(lag).roll_ms == TopicConfig.load({}).segment_ms


@pytest.mark.parametrize(
    ("option", "given", "read"),
    [
        ("compression.type", " gzip", "gzip"),
        ("unclean.leader.election.enable", "true ", True),
        ("leader.replication.throttled.replicas", "0:1 , 1:1", "0:1,1:1"),
        ("follower.replication.throttled.replicas", "0:1,,1:1, ", "0:1,1:1"),
    ],
)
def test_spaces_around_values_and_empty_elements_are_not_part_of_them(option: str, given: str, read: object) -> None:
    assert TopicConfig.load({option: given}).options()[option] == read

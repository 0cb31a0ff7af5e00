"""Tests of admission.

A limited micro-batch shares its records and bytes fairly. Records are shared exactly, and bytes as exactly as the index
allows.
"""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.admission import admit, admit_bytes
from pyspark_millrace.planning.splits import Extent

keys = st.builds(PartitionKey, st.sampled_from("ab"), st.integers(0, 9))
backlogs = st.dictionaries(keys, st.integers(0, 10_000))


@given(backlogs, st.integers(1, 20_000), st.integers(0, 10**9))
def test_shares_add_up_to_the_limit_or_the_whole_backlog(backlog, limit, turn):
    shares = admit(backlog, limit, turn=turn)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 < share <= backlog[key] for key, share in shares.items())


@given(backlogs, st.integers(20, 20_000))
def test_every_partition_with_a_backlog_gets_a_share(backlog, limit):
    waiting = {key for key, count in backlog.items() if count}
    assert set(admit(backlog, limit)) == waiting


@given(backlogs.filter(lambda backlog: sum(backlog.values()) > 0), st.integers(1, 3))
def test_with_fewer_records_than_partitions_they_take_turns(backlog, limit):
    waiting = {key for key, count in backlog.items() if count}
    served = set()
    for turn in range(len(waiting)):
        served |= set(admit(backlog, limit, turn=turn))
    assert served == waiting


def test_shares_are_in_proportion():
    backlog = {PartitionKey("t", 0): 900_000, PartitionKey("t", 1): 100_000}
    assert admit(backlog, 1000) == {PartitionKey("t", 0): 900, PartitionKey("t", 1): 100}


def extents_of(sizes, first_offset=0):
    """Create extents of ten offsets each."""
    edges = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    return tuple(
        Extent(first_offset + 10 * number, first_offset + 10 * (number + 1), start, end, "")
        for number, (start, end) in enumerate(pairwise(edges))
    )


def cut_in_ten(key, extent, room_bytes):
    """Create an index with an entry for every record."""
    step = extent.bytes // 10
    return [
        Extent(
            extent.start_offset + number,
            extent.start_offset + number + 1,
            extent.start_position + step * number,
            extent.end_position if number == 9 else extent.start_position + step * (number + 1),
            "",
        )
        for number in range(10)
    ]


sizes = st.lists(st.integers(10, 5000), max_size=5)


@given(st.dictionaries(keys, sizes, min_size=1), st.integers(1, 30_000), st.integers(0, 10**6))
def test_bytes_stay_within_the_limit_but_for_one_piece_each(by_key, limit, turn):
    located = {key: extents_of(found) for key, found in by_key.items()}
    wanted = {key: 10 * len(found) + 3 for key, found in by_key.items()}
    ends = admit_bytes(wanted, located, limit, cut_in_ten, turn=turn)
    total = sum(sum(found) for found in by_key.values())
    if total <= limit:
        assert ends == wanted
        return
    taken, largest = 0, 0
    for key, end in ends.items():
        pieces = [piece for extent in located[key] for piece in cut_in_ten(key, extent, 0)]
        read = [piece.bytes for piece in pieces if piece.end_offset <= end]
        # A partition with a share advances. If all its records were taken, the rest of its range without records is
        # taken too.
        assert read or not by_key[key]
        assert end in {piece.end_offset for piece in pieces} | {wanted[key]}
        taken += sum(read)
        largest += max(read[:1], default=0)
    assert taken <= limit + largest
    assert taken > 0


@given(st.dictionaries(keys, st.integers(10, 5000), min_size=2))
def test_no_partition_starves_for_bytes(by_key):
    located = {key: extents_of([size]) for key, size in by_key.items()}
    wanted = dict.fromkeys(by_key, 10)
    ends = admit_bytes(wanted, located, len(by_key), cut_in_ten)
    assert all(0 < ends[key] <= 10 for key in by_key)


def test_bytes_are_shared_in_proportion():
    located = {PartitionKey("t", 0): extents_of([9000] * 10), PartitionKey("t", 1): extents_of([1000] * 10)}
    ends = admit_bytes(dict.fromkeys(located, 100), located, 50_000, cut_in_ten)
    assert ends == {PartitionKey("t", 0): 50, PartitionKey("t", 1): 50}

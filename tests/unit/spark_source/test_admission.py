"""A limited micro-batch shares its records fairly and exactly."""

from hypothesis import given
from hypothesis import strategies as st

from pyspark_millrace.admission import admit
from pyspark_millrace.positions import PartitionKey

keys = st.builds(PartitionKey, st.sampled_from("ab"), st.integers(0, 9))
backlogs = st.dictionaries(keys, st.integers(0, 10_000))


@given(backlogs, st.integers(1, 20_000), st.integers(0, 10**9))
def test_exactly_the_limit_or_all_there_is(backlog, limit, turn):
    shares = admit(backlog, limit, turn=turn)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 < share <= backlog[key] for key, share in shares.items())


@given(backlogs, st.integers(20, 20_000))
def test_no_partition_starves(backlog, limit):
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

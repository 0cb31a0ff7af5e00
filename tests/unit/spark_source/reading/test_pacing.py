"""Tests of the rate limit that the tasks of a machine share."""

import os
import threading
import uuid

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_millrace.reading.pacing import Pace, SharedPace, paced, pieces_of, used_up_to
from pyspark_millrace.reading.reports import ReadCounters

RATE = 1000


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 10_000)), min_size=1))
def test_a_client_that_waits_as_asked_keeps_the_rate(reads):
    # The tasks run one after another. Time passes between reads, and then the client waits.
    now = until = 0.0
    total = 0
    for pause, size in reads:
        now += pause
        until = used_up_to(until, now, size, RATE)
        total += size
        now = max(now, until)
        assert total <= RATE * now * 1.000001


def test_unused_time_gives_no_credit():
    assert used_up_to(3.0, 100.0, 500, RATE) == 100.5


def test_tasks_share_what_is_used_up(tmp_path):
    pace = Pace(uuid.uuid4(), RATE)
    one, other, stranger = (
        SharedPace(each, tmp_path / "pace", clock=lambda: 50.0) for each in (pace, pace, Pace(uuid.uuid4(), RATE))
    )
    assert one.spend(500) == 0.5
    assert other.spend(1500) == 2.0
    assert one.spend(2000) == 4.0
    assert stranger.spend(250) == 0.25
    for shared in (one, other, stranger):
        shared.close()


def test_tasks_that_read_at_once_lose_nothing(tmp_path):
    pace = Pace(uuid.uuid4(), RATE)

    def read():
        shared = SharedPace(pace, tmp_path / "pace", clock=lambda: 0.0)
        for _ in range(200):
            shared.spend(10)
        shared.close()

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    last = SharedPace(pace, tmp_path / "pace", clock=lambda: 0.0)
    assert abs(last.spend(0) - 8.0) < 1e-9
    last.close()


def test_the_first_task_of_a_plan_removes_files_of_old_plans(tmp_path):
    folder = tmp_path / "pace"
    old, new = Pace(uuid.uuid4(), RATE), Pace(uuid.uuid4(), RATE)

    def names_after_a_task_of(pace):
        SharedPace(pace, folder).close()
        return sorted(path.name for path in folder.iterdir())

    names_after_a_task_of(old)
    os.utime(folder / old.token.hex, (1, 1))
    assert names_after_a_task_of(new) == [new.token.hex]
    names_after_a_task_of(old)
    os.utime(folder / old.token.hex, (1, 1))
    # Later tasks do not look: a query with a micro-batch each second has many files.
    assert names_after_a_task_of(new) == sorted([old.token.hex, new.token.hex])


@given(st.integers(0, 200), st.integers(1, 50))
def test_pieces_are_the_batch_and_about_equal(rows, count):
    batch = pa.record_batch({"n": pa.array(range(rows), pa.int64())})
    pieces = pieces_of(batch, count)
    assert 1 <= len(pieces) <= count
    assert pa.Table.from_batches(pieces).column("n").to_pylist() == list(range(rows))
    assert max(piece.num_rows for piece in pieces) <= -(-rows // count) or rows == 0


def test_a_large_batch_is_handed_on_little_by_little():
    counters = ReadCounters()
    batch = pa.record_batch({"n": pa.array(range(10_000), pa.int64())})

    def read():
        for _ in range(2):
            counters.decoded_bytes += 4_000_000
            yield batch

    pieces = list(paced(read(), counters, Pace(uuid.uuid4(), 80_000_000)))
    assert [piece.num_rows for piece in pieces] == [1000] * 20

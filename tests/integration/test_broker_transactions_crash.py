"""Tests of transactions on a broker that is killed at any moment.

The kill is SIGKILL. Each transaction is visible completely or not at all.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import MillraceError

from .test_broker_process import Process
from .transaction_calls import Producer, committed, together
from .waiting import STALL_S, eventually

TOPIC = "orders"
PARTITIONS = 3
QUERY = "query"
WRITERS = 3


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(tmp_path / "data", "-o", "transaction.state.log.num.partitions=3"))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@dataclass
class Attempt:
    """A tried transaction. ``is_committed`` is None as long as no client knows the outcome."""

    value: bytes
    partitions: frozenset[int]
    is_committed: bool | None = None


@dataclass
class History:
    """All tried transactions of all threads. ``steps`` are the query's epochs, each with its attempts."""

    attempts: list[Attempt] = field(default_factory=list)
    steps: dict[int, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    next_step: int = 0

    @property
    def has_ended_transactions(self) -> bool:
        """Tell whether a step of the query and a producer's transaction were committed."""
        return self.next_step > 0 and any(attempt.is_committed for attempt in list(self.attempts))


def write_one(calls: Any, name: str, history: History, chance: random.Random) -> None:
    """Run transactions, some of them aborted, until the broker is gone."""
    producer = Producer(calls, name).init()
    while True:
        chosen = frozenset(chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)))
        attempt = Attempt(b"%s-%d" % (name.encode(), chance.getrandbits(60)), chosen)
        history.attempts.append(attempt)
        wanted = chance.random() < 0.7
        if not wanted:
            attempt.is_committed = False  # no client will ask for its commit
        for partition in chosen:
            producer.write(TOPIC, attempt.value, partition=partition)
        if chance.random() < 0.1:
            attempt.is_committed = False
            producer.init()  # a new instance fences the producer before the transaction ends
            continue
        producer.end(committed=wanted)
        attempt.is_committed = wanted


def write_together(calls: Any, history: History, chance: random.Random) -> None:
    """Run the steps of a query. Each commits some producers together, and is retried until it succeeds."""
    while True:
        members = [Producer(calls, f"task-{number}", QUERY).init() for number in range(3)]
        value = b"step-%d-%d" % (history.next_step, chance.getrandbits(60))
        for partition, member in enumerate(members[:2]):
            member.write(TOPIC, value, partition=partition)
        members[2].write(TOPIC, b"loser of " + value, partition=2)
        history.attempts.append(Attempt(b"loser of " + value, frozenset({2}), is_committed=False))
        attempt = Attempt(value, frozenset({0, 1}))
        history.steps[history.next_step].append(attempt)
        request = together(QUERY, history.next_step, members[:2], members[2:])
        answer = calls.call("CommitTransactions", request)
        attempt.is_committed = not answer.was_committed_before
        history.next_step += 1


@pytest.mark.dial("BROKER_KILL_ROUNDS", seconds=15)
def test_each_transaction_is_there_as_a_whole_or_not_at_all(
    start: Callable[[], Process], calls_to: Callable[[str], Any], rounds: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    history = History()
    for round_number in range(rounds):
        process = start()
        if not round_number:
            calls_to(process.address).create(TOPIC, PARTITIONS)
        killer = threading.Timer(chance.uniform(0.3, 1.5), process.kill)
        # Every other round may end before any transaction does.
        _work_until_killed(process, calls_to, history, chance, killer, always=bool(round_number % 2))
        assert process.wait() == -signal.SIGKILL
        killer.join()
    calls = calls_to(start().address)
    for number in range(WRITERS):
        Producer(calls, f"writer-{number}").init()  # aborts the open transactions
    for number in range(3):
        Producer(calls, f"task-{number}", QUERY).init()
    _check(calls, history)


def _work_until_killed(
    process: Process,
    calls_to: Callable[[str], Any],
    history: History,
    chance: random.Random,
    killer: threading.Timer,
    *,
    always: bool,
) -> None:
    """Write until the killer's time is over. The time begins at once, or when transactions of both kinds have ended."""
    failures: list[BaseException] = []

    def until_killed(work: Callable[..., None], *arguments: Any) -> None:
        calls = calls_to(process.address)
        while process.is_running and not failures:
            try:
                work(calls, *arguments, history, random.Random(chance.getrandbits(64)))
            except MillraceError as error:
                if not error.retriable:  # as a coordinator's that is not there yet
                    failures.append(error)
            except BaseException as error:  # noqa: BLE001 - it is the test that fails
                failures.append(error)

    threads = [threading.Thread(target=until_killed, args=(write_one, f"writer-{number}")) for number in range(WRITERS)]
    threads.append(threading.Thread(target=until_killed, args=(write_together,)))
    for thread in threads:
        thread.start()
    eventually(lambda: always or failures or history.has_ended_transactions, "transactions")
    killer.start()
    for thread in threads:
        thread.join(STALL_S)
        assert not thread.is_alive()
    assert not failures, failures


def _check(calls: Any, history: History) -> None:
    where: dict[bytes, list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for value in committed(calls, TOPIC, partition):
            where[value].append(partition)
    tried = {attempt.value: attempt for attempts in history.steps.values() for attempt in attempts}
    tried |= {attempt.value: attempt for attempt in history.attempts}
    assert where.keys() <= tried.keys(), "every record belongs to an attempt"
    for value, attempt in tried.items():
        found = sorted(where.get(value, []))
        assert found in ([], sorted(attempt.partitions)), f"{attempt}: found in {found}"
        if attempt.is_committed is not None:
            assert bool(found) is attempt.is_committed, f"{attempt}: found in {found}"
    for step in range(history.next_step):
        visible = [attempt for attempt in history.steps[step] if attempt.value in where]
        assert len(visible) == 1, f"step {step} is there {len(visible)} times: {history.steps[step]}"
    assert history.has_ended_transactions

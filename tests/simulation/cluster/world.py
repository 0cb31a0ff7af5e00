"""A simulated cluster with its clients, from a seed, and its invariants.

``World.run`` lets machines, clients and faults work for a while. Then it repairs all faults, waits until the cluster is
idle, and checks the result. A *step* is an instant in which something was done. After each step ``Invariants`` checks
all brokers. With every answer ``Recorder`` checks what clients get. Any violation ends the run with ``ViolationError``,
which has the seed, the step, the time, and the last events.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.quotas import CallClass

from ...histories.checker import anomalies, processing_anomalies
from ...histories.history import Place, Read
from .admin import Administrator
from .clients import Client, Position, check, committed_reads
from .consumer_members import ConsumerMember, Ownership
from .ensemble import Ensemble
from .faults import Faults
from .groups import Member, Monitor, Transformer
from .invariants import Invariants, read_all
from .kafka_clients import KafkaMember, KafkaTransactor, KafkaWriter
from .loop import START_S, Process, VirtualLoop, current
from .machine import Machine, little_room
from .network import Network, ask
from .producers import Transactor, Writer
from .recorder import Recorder

INPUT: Final = "in"
OUTPUT: Final = "out"
_PARTITIONS: Final = 2
_REST_S: Final = 60.0
"""The time without faults after which a cluster must be idle."""
_EVENTS_KEPT: Final = 40


class ViolationError(AssertionError):
    """A violated invariant."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The first draws of a seed.

    These are the cluster's size, the duration of faults, and the ends of brokers. ``limits`` are broker options that
    leave calls little room. A third of the clusters has them. There, consumers wait for ``fetch_min_bytes``, so that
    their calls are parked.
    """

    brokers: int
    seconds: float
    syncs: bool
    limits: Mapping[str, str]
    fetch_min_bytes: int
    kafka: bool
    """True if some clients are those of Kafka, and a consumer group of KIP-848 is there too."""

    @classmethod
    def draw(cls, choose: random.Random, choose_limits: random.Random, choose_mix: random.Random) -> Plan:
        has_little_room = choose_limits.random() < 1 / 3
        return cls(
            brokers=choose.choice([3, 3, 4]),
            seconds=choose.uniform(4, 10),
            syncs=choose.random() < 0.5,
            limits=little_room(choose_limits) if has_little_room else {},
            fetch_min_bytes=choose_limits.choice([1, 2_000]) if has_little_room else 1,
            kafka=choose_mix.random() < 0.4,
        )


class World:
    """The world of this module."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed: Final = seed
        self.choose: Final = random.Random(seed)
        self.plan: Final = Plan.draw(self.choose, self._random("limits"), self._random("mix"))
        self.loop: Final = VirtualLoop(self._random("threads"))
        self.network: Final = Network(self.loop, self._random("network"))
        self.ensemble: Final = Ensemble(self.loop, self.network, self._random("zookeeper"), session_timeout_s=3.0)
        self.broker_ids: Final = list(range(1, self.plan.brokers + 1))
        self.machines: Final = [self._machine(each, directory) for each in self.broker_ids]
        self.places: Final = [Place(INPUT, number) for number in range(_PARTITIONS)]
        self.outputs: Final = [Place(OUTPUT, number) for number in range(_PARTITIONS)]
        self.is_over = False
        self.events: Final[deque[str]] = deque(maxlen=_EVENTS_KEPT)
        self.trace: Final = hashlib.sha256()
        self.recorder: Final = Recorder(self, (*self.places, *self.outputs))
        self.invariants: Final = Invariants(self)
        self.faults: Final = Faults(self)
        self._violation: str | None = None

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def _machine(self, broker_id: int, directory: Path) -> Machine:
        own = directory / str(broker_id)
        own.mkdir(parents=True)
        choose = self._random(f"machine {broker_id}")
        return Machine(
            broker_id,
            self.loop,
            self.network,
            self.ensemble,
            own,
            choose,
            syncs=self.plan.syncs,
            limits=self.plan.limits,
        )

    # --- events ----------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        return round(self.loop.time() * 1e9)

    @property
    def now_ms(self) -> int:
        """Return the time of a correct clock."""
        return self.machines[0].clock.now_ms() - self.machines[0].clock.skew_ms

    def note(self, what: str) -> None:
        """Note an event that helps to understand a failed run."""
        line = f"{self.loop.time() - START_S:9.4f}  {what}"
        self.trace.update(line.encode())
        self.events.append(line)

    def violated(self, what: str) -> None:
        """Report a violation, which ends the run with this step."""
        if self._violation is None:
            self._violation = what
            self.note(what)

    # --- running ---------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Run the seed and return a digest of its events. Raises ``ViolationError``."""
        with self._no_chance(), self._watched_log():
            asyncio.set_event_loop(self.loop)
            self.loop.on_quiet = self._step
            driver = Process("driver")
            task = driver.context.run(self.loop.create_task, self._drive())
            try:
                self.loop.run_until_complete(task)
            except (AssertionError, MillraceError) as error:
                raise ViolationError(self._report(str(error) or repr(error))) from error
            finally:
                self._let_go()
        return self.trace.hexdigest()

    def _report(self, what: str) -> str:
        events = "\n".join(self.events)
        return (
            f"seed {self.seed}, step {self.loop.turns}, {self.loop.time() - START_S:.4f} s: {what}\n"
            f"{self.plan}\nlast events:\n{events}"
        )

    def _step(self) -> None:
        if self._violation is not None:
            raise AssertionError(self._violation)
        self.invariants.check()
        self.faults.step()

    async def _drive(self) -> None:
        for machine in self.machines:
            machine.start()
        await self._until(lambda: all(each.is_up for each in self.machines), "the cluster is up")
        await self._create_topics()
        clients = self._clients()
        tasks = [each.process.context.run(self.loop.create_task, each.work()) for each in clients]
        self.faults.begin()
        await asyncio.sleep(self.plan.seconds)
        await self.faults.end()
        self.note("no more faults")
        await asyncio.sleep(2.0)
        self.is_over = True
        await self._until(lambda: all(task.done() for task in tasks), "clients have ended", tasks)
        await asyncio.gather(*tasks)
        await self._until(self._has_no_calls, "what clients' calls held is given back")
        await self._until(self.invariants.are_replicas_equal, "replicas are equal")
        self.invariants.check_at_rest()
        self._check_history()

    async def _create_topics(self) -> None:
        topics = [pb.NewTopic(name=name, num_partitions=_PARTITIONS, replication_factor=3) for name in (INPUT, OUTPUT)]
        request = pb.CreateTopicsRequest(topics=topics, timeout_ms=5_000)
        answer: pb.CreateTopicsResponse = await ask(self.network, "driver", "broker-1", request, timeout_s=10)
        for result in answer.results:
            check(result.error)

    def _clients(self) -> list[Client]:
        common: list[Client] = [
            Writer(self, "writer-1"),
            Transactor(self, "transactor-1"),
            Transformer(self, "transformer"),
            Member(self, "member-1"),
            Member(self, "member-2"),
            Monitor(self, "monitor"),
            Administrator(self, "administrator"),
        ]
        if not self.plan.kafka:
            return [*common, Writer(self, "writer-2"), Transactor(self, "transactor-2"), Member(self, "member-3")]
        ownership = Ownership(self)
        return [
            *common,
            KafkaWriter(self, "kafka-writer"),
            KafkaTransactor(self, "kafka-transactor-1", keeps_epoch=True),
            KafkaTransactor(self, "kafka-transactor-2", keeps_epoch=False),
            KafkaMember(self, "kafka-member"),
            *(ConsumerMember(self, f"consumer-{number}", ownership) for number in (1, 2, 3)),
        ]

    async def _until(self, condition: Any, what: str, tasks: Sequence[asyncio.Task[Any]] = ()) -> None:
        deadline_s = self.loop.time() + _REST_S
        while not condition():
            for task in tasks:
                if task.done() and task.exception() is not None:
                    raise AssertionError(f"{task.get_name()} failed") from task.exception()
            if self.loop.time() > deadline_s:
                raise AssertionError(f"after {_REST_S:.0f} s without faults this still does not hold: {what}")
            await asyncio.sleep(0.1)

    def _has_no_calls(self) -> bool:
        """Tell whether brokers hold no calls of clients any more."""
        for machine in self.machines:
            if machine.broker is None:
                return False
            admission = machine.broker.admission
            held = [len(admission.parked), admission.parked.bytes]
            for room in (admission.rooms[CallClass.CLIENT], admission.rooms[CallClass.CONTROL]):
                held += [room.requests, room.request_bytes.in_use_bytes, room.response_bytes.in_use_bytes]
            if any(held):
                return False
        return True

    # --- final checks ----------------------------------------------------------------------------------------

    def _check_history(self) -> None:
        final = [read for place in (*self.places, *self.outputs) for read in self._final(place)]
        found = anomalies(self.recorder.history, final)
        inputs = [read.value for read in final if read.place.topic == INPUT]
        outputs = [read.value for read in final if read.place.topic == OUTPUT]
        found += processing_anomalies(inputs, outputs, is_finished=False)
        if found:
            listed = "\n".join(f"  {each.kind}: {each.what}" for each in found[:5])
            raise AssertionError(f"{len(found)} anomalies in what clients did and saw:\n{listed}")

    def _final(self, place: Place) -> list[Read]:
        """Return everything committed in a partition, as its leader has it."""
        log = self.invariants.leader_log(place)
        data = read_all(log, log.log_start_offset, log.log_end_offset)
        aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        assert log.last_stable_offset == log.log_end_offset, f"{place}: a transaction is still open"
        return committed_reads(place, Position(0, -1), data, aborted)[0]

    # --- randomness ------------------------------------------------------------------------------------------

    @contextmanager
    def _no_chance(self) -> Iterator[None]:
        """Replace all sources of random numbers by the seed's."""
        chance = self._random("chance")
        state = random.getstate()
        random.seed(self.seed)
        with (
            mock.patch.object(os, "urandom", chance.randbytes),
            mock.patch("millrace_broker.metadata.assignment.random", _Seeded(chance)),
            mock.patch("millrace_broker.metadata.registration.threading.Event.wait", return_value=False),
        ):
            try:
                yield
            finally:
                random.setstate(state)

    @contextmanager
    def _watched_log(self) -> Iterator[None]:
        """Report unexpected errors as violations, also those that the broker catches."""
        handler = _Watcher(self)
        logger = logging.getLogger("millrace_broker")
        logger.addHandler(handler)
        propagates, logger.propagate = logger.propagate, False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagates

    def _let_go(self) -> None:
        """Drop all processes without running any of their code."""
        self.loop.set_exception_handler(lambda *_: None)
        for machine in self.machines:
            if machine.process is not None:
                self.loop.kill(machine.process)
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        asyncio.set_event_loop(None)
        self.loop.close()


class _Seeded:
    """A replacement of the module ``random`` for code that creates generators."""

    def __init__(self, choose: random.Random) -> None:
        self._choose: Final = choose

    def Random(self) -> random.Random:  # noqa: N802 - the module's name for it
        return random.Random(self._choose.random())


class _Watcher(logging.Handler):
    """A log handler that reports unexpected errors as violations.

    It reports errors with a stack trace, except those of dead processes.
    """

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world: Final = world

    def emit(self, record: logging.LogRecord) -> None:
        process = current.get()
        if process is None or process.is_dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, MillraceError):
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            at = "" if where is None else f" at {where.tb_frame.f_code.co_filename}:{where.tb_lineno}"
            self._world.violated(f"{process.name}: unforeseen: {record.getMessage()}: {error!r}{at}")
        elif record.levelno >= logging.ERROR:
            self._world.note(f"{process.name}: {record.getMessage()[:150]}")

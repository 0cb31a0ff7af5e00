"""Three brokers with one partition, a controller and an unreliable network.

Messages wait in ``network`` until a test delivers or loses them. A crash keeps the log and the last high watermark
checkpoint, and loses everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.errors import IneligibleReplicaError, MillraceError, OffsetOutOfRangeError, StaleControllerEpochError
from millrace_broker.decisions import PartitionDecision
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.replication.core import AlterIsr, Leader, Replica, ReplicationSettings
from millrace_broker.replication.core.follower import (
    Append,
    AskEpochEnd,
    AskLogBounds,
    Effect,
    FetchedRecords,
    FetchFrom,
    Follower,
    Question,
    Truncate,
)
from millrace_broker.replication.core.truncation import epoch_end, find_divergence

SETTINGS = ReplicationSettings(replica_lag_time_max_ms=30_000, min_insync_replicas=2)
Record = tuple[int, str]
"""Leader epoch and value."""


class MemoryLog:
    """A log as a list of records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.epochs = LeaderEpochs()
        self.log_start_offset = 0

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def append(self, record: Record) -> None:
        self.epochs.assign(record[0], len(self.records))
        self.records.append(record)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_end(offset)


@dataclass
class Broker:
    broker_id: int
    settings: ReplicationSettings
    log: MemoryLog = field(default_factory=MemoryLog)
    checkpoint: int = 0
    is_up: bool = True
    epoch: int = 0
    """The broker epoch. The broker refuses a request for an earlier registration."""
    pending: list[tuple[int, Record]] = field(default_factory=list)
    """Unacknowledged records of acks=all: end offset and record."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.replica = Replica("t-0", self.broker_id, self.settings, self.checkpoint)
        self.pending = []

    @property
    def leader(self) -> Leader | None:
        return self.replica.role if self.is_up and isinstance(self.replica.role, Leader) else None

    @property
    def follower(self) -> Follower | None:
        return self.replica.role if self.is_up and isinstance(self.replica.role, Follower) else None

    def carry_out(self, effects: tuple[Effect, ...], records: tuple[Record, ...] = ()) -> None:
        for effect in effects:
            if isinstance(effect, Truncate):
                self.log.truncate(effect.offset)
            elif isinstance(effect, Append):
                for record in records:
                    self.log.append(record)


@dataclass
class Message:
    deliver: Callable[[], None]
    what: str


class Cluster:
    """Brokers 0, 1 and 2 (or fewer), all in sync at first. Broker 0 leads."""

    def __init__(
        self, brokers: int = 3, settings: ReplicationSettings = SETTINGS, follower: type[Follower] = Follower
    ) -> None:
        self.now = 1_000_000
        self.brokers = [Broker(number, settings) for number in range(brokers)]
        self.network: list[Message] = []
        self.acknowledged: dict[int, Record] = {}
        self.follower_class = follower
        ids = tuple(range(brokers))
        self.state = PartitionDecision(
            controller_epoch=1, leader=0, leader_epoch=0, partition_epoch=0, isr=ids, replicas=ids
        )
        for number in ids:
            self.decide(number, self.state)

    # The controller holds clean elections only.

    def change(self, **changes: Any) -> None:
        self.state = replace(self.state, partition_epoch=self.state.partition_epoch + 1, **changes)

    def elect(self) -> None:
        """Shrink the ISR to the live brokers after brokers come or go, but not to none. Elect one of the ISR."""
        there = tuple(each for each in self.state.isr if self.brokers[each].is_up)
        leader = self.state.leader if self.state.leader in there else next(iter(there), -1)
        self.change(leader=leader, leader_epoch=self.state.leader_epoch + 1, isr=there or self.state.isr)
        for broker in self.brokers:
            if broker.is_up:
                self.tell(broker)

    def tell(self, to: Broker) -> None:
        """Send the present state to a broker.

        The broker refuses it if it has registered again before the state arrives.
        """
        state, epoch = self.state, to.epoch

        def arrive() -> None:
            if to.epoch == epoch:
                self.decide(to.broker_id, state)

        self._send("LeaderAndIsr", arrive)

    def fence(self, number: int, *, does_elect: bool) -> None:
        """Fence a live broker, and let it register again.

        The controller elects another broker. If the controller is replaced before that, the state stays as it was.
        """
        broker = self.brokers[number]
        broker.replica.fenced()
        broker.pending = []
        broker.epoch += 1
        others = tuple(each for each in self.state.isr if each != number and self.brokers[each].is_up)
        if does_elect and others:
            self.change(leader=others[0], leader_epoch=self.state.leader_epoch + 1, isr=others)
        for each in self.brokers:
            if each.is_up and (does_elect or each is broker):
                self.tell(each)

    def alter(self, asked: AlterIsr, asker: int, epoch: int) -> None:
        if self.brokers[asker].epoch != epoch:
            return  # refused and not retried, because the requester has been fenced
        self._alter(asked, asker)

    def _alter(self, asked: AlterIsr, asker: int) -> None:
        def answer() -> None:
            leader = self.brokers[asker].leader
            if leader is not None:
                self.follow(leader, leader.isr_altered(isr, asked.leader_epoch, epoch, self.now))

        fits = (asked.leader_epoch, asked.partition_epoch) == (self.state.leader_epoch, self.state.partition_epoch)
        if fits and not all(self.brokers[each].is_up for each in asked.isr):
            self._send("AlterPartition refusal", lambda: self._refuse(asked, asker))
            return
        if fits:
            self.change(isr=asked.isr)
        elif (asked.leader_epoch, asked.isr) != (self.state.leader_epoch, self.state.isr):
            return  # refused without notice, so only the next decision helps
        isr, epoch = self.state.isr, self.state.partition_epoch
        self._send("AlterPartition answer", answer)

    def _refuse(self, asked: AlterIsr, asker: int) -> None:
        leader = self.brokers[asker].leader
        if leader is not None:
            self.follow(leader, leader.isr_refused(asked, IneligibleReplicaError("not alive"), self.now))

    # Brokers.

    def decide(self, number: int, decision: PartitionDecision) -> None:
        broker = self.brokers[number]
        if not broker.is_up:
            return
        try:
            change = broker.replica.decided(decision, broker.log, self.now)
        except StaleControllerEpochError:
            return
        follower = broker.follower
        if follower is not None:
            broker.pending = []
            effects = change.effects
            if self.follower_class is not Follower:
                follower = self.follower_class(decision, broker.log, broker.settings, broker.replica.high_watermark)
                broker.replica.role = follower
                effects = follower.begin()
            broker.carry_out(effects)
        elif change.begins_epoch is not None:
            broker.log.epochs.assign(change.begins_epoch, broker.log.log_end_offset)
            leader = broker.leader
            assert leader is not None
            leader.know_alive(lambda each: self.brokers[each].is_up)
            self.follow(leader, change.outcome)

    def produce(self, number: int, value: str) -> bool:
        broker = self.brokers[number]
        leader = broker.leader
        if leader is None:
            return False
        try:
            leader.check_enough_in_sync()
        except MillraceError:
            return False
        record = (leader.epoch, value)
        broker.log.append(record)
        broker.pending.append((broker.log.log_end_offset, record))
        self.follow(leader, leader.appended(broker.log.log_end_offset, self.now))
        return True

    def follow(self, leader: Leader, outcome: Any) -> None:
        """Carry out the effects of a leader's event."""
        broker = next(each for each in self.brokers if each.replica.role is leader)
        if outcome.alter_isr is not None:
            asked, asker = outcome.alter_isr, broker.broker_id
            self._send("AlterPartition", lambda epoch=broker.epoch: self.alter(asked, asker, epoch))
        if outcome.has_watermark_risen:
            for end_offset, record in list(broker.pending):
                try:
                    is_acknowledged = leader.is_acknowledged(end_offset)
                except MillraceError:
                    broker.pending.remove((end_offset, record))
                    continue
                if is_acknowledged:
                    broker.pending.remove((end_offset, record))
                    self.acknowledged[end_offset - 1] = record

    def ask(self, number: int) -> None:
        follower = self.brokers[number].follower
        question = follower.question(self.now) if follower else None
        if follower is None or question is None:
            return
        to, asked = follower.leader, question
        self._send("question", lambda: self.serve(to, number, follower, asked))

    def serve(self, number: int, asker: int, follower: Follower, question: Question) -> None:
        broker = self.brokers[number]
        answer: Any
        records: tuple[Record, ...] = ()
        try:
            if not broker.is_up:
                return
            leader = broker.replica.leading(question.leader_epoch)
            if isinstance(question, FetchFrom):
                answer, records = self._fetch(broker, leader, asker, question)
            elif isinstance(question, AskEpochEnd):
                answer = epoch_end(broker.log, question.epoch)
            else:
                answer = (broker.log.log_start_offset, broker.log.log_end_offset)
        except MillraceError as error:
            answer = error
        self._send("answer", lambda: self.answer(asker, follower, question, answer, records))

    def _fetch(
        self, broker: Broker, leader: Leader, asker: int, question: FetchFrom
    ) -> tuple[FetchedRecords, tuple[Record, ...]]:
        log = broker.log
        diverging = None
        if question.offset > log.log_end_offset and question.last_epoch is None:
            raise OffsetOutOfRangeError(f"offset {question.offset} of {log.log_end_offset}")
        if question.last_epoch is not None:
            diverging = find_divergence("t-0", log, question.offset, question.last_epoch)
        if diverging is not None:
            end = question.offset
        else:
            self.follow(leader, leader.fetched(asker, question.offset, 0, self.now))
            end = min(question.offset + 2, log.log_end_offset)
        records = tuple(log.records[question.offset : end]) if diverging is None else ()
        answer = FetchedRecords(
            end_offset=max(end, question.offset), high_watermark=leader.high_watermark, diverging=diverging
        )
        return answer, records

    def answer(
        self, number: int, follower: Follower, question: Question, answer: Any, records: tuple[Record, ...]
    ) -> None:
        broker = self.brokers[number]
        if broker.follower is not follower:
            return
        if isinstance(answer, MillraceError):
            follower.failed(question, answer, self.now)
        elif isinstance(question, FetchFrom):
            broker.carry_out(follower.fetched(question, answer), records)
        elif isinstance(question, AskEpochEnd):
            broker.carry_out(follower.compared(question, answer))
        elif isinstance(question, AskLogBounds):
            broker.carry_out(follower.bounded(question, *answer))

    def crash(self, number: int) -> None:
        self.brokers[number].is_up = False
        for broker in self.brokers:
            if broker.leader is not None:
                self.follow(broker.leader, broker.leader.brokers_changed(self.now))

    def restart(self, number: int) -> None:
        self.brokers[number].is_up = True
        self.brokers[number].start()

    def tick(self, ms: int) -> None:
        self.now += ms
        for broker in self.brokers:
            if broker.leader is not None:
                self.follow(broker.leader, broker.leader.shrink_isr(self.now))

    # The network.

    def _send(self, what: str, deliver: Callable[[], None]) -> None:
        self.network.append(Message(deliver, what))

    def settle(self) -> None:
        """Deliver all messages in flight, in order."""
        while self.network:
            self.network.pop(0).deliver()

    def fetch_round(self, number: int) -> None:
        """Run one fetch, in which the follower asks, is answered, and takes the answer."""
        self.ask(number)
        self.settle()

"""Model test of the controller and the replicas together.

An acknowledged record is on every replica that may be elected, whichever broker fails.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import combinations

import pytest

from millrace.errors import FencedLeaderEpochError, MillraceError
from millrace_broker.decisions import IsrChange, TopicPartition
from millrace_broker.replication.core import (
    AlterIsr,
    FetchedRecords,
    FetchFrom,
    Follower,
    Leader,
    LeaderOutcome,
    Replica,
)
from millrace_broker.replication.core.follower import Append, Effect, Truncate
from millrace_broker.replication.core.truncation import find_divergence

from ..replication.core.cluster import SETTINGS, MemoryLog, Record
from .world import LeaderAndIsrRequest, StopReplicaRequest, World

BROKERS = (1, 2, 3, 4)
Place = tuple[int, TopicPartition]


class Whole(World):
    """A world whose brokers have logs and replicate them. A crash keeps the logs; high watermarks start at 0."""

    def __init__(self, *brokers: int) -> None:
        self.now = 1_000_000
        self.logs: dict[Place, MemoryLog] = defaultdict(MemoryLog)
        self.replicas: dict[Place, Replica] = {}
        self.pending: dict[Place, list[tuple[int, Record]]] = defaultdict(list)
        self.acknowledged: dict[TopicPartition, dict[int, Record]] = defaultdict(dict)
        super().__init__(*brokers)

    def register(self, broker_id: int) -> None:
        super().register(broker_id)
        for place in [each for each in self.replicas if each[0] == broker_id]:
            del self.replicas[place]

    def _follow_or_lead(self, broker_id: int, request: LeaderAndIsrRequest) -> None:
        super()._follow_or_lead(broker_id, request)
        for partition, state in request.partitions.items():
            place = (broker_id, partition)
            replica = self.replicas.setdefault(place, Replica(str(partition), broker_id, SETTINGS))
            try:
                change = replica.decided(state.decision(request.controller_epoch), self.logs[place], self.now)
            except MillraceError:
                continue
            self._carry_out_on(place, change.effects)
            if change.begins_epoch is not None:
                log = self.logs[place]
                log.epochs.assign(change.begins_epoch, log.log_end_offset)
                replica.leading(None).know_alive(lambda each: each in self.brokers)
                self.follow(place, change.outcome)
            else:
                self.pending[place].clear()

    def _stop_replicas(self, broker_id: int, request: StopReplicaRequest) -> None:
        for partition, state in request.partitions.items():
            place = (broker_id, partition)
            try:
                if place in self.replicas:
                    self.replicas[place].stopped(state.leader_epoch)
            except FencedLeaderEpochError:
                continue
            if state.is_deleted:
                self.replicas.pop(place, None)
                self.logs.pop(place, None)
        super()._stop_replicas(broker_id, request)

    def _carry_out_on(self, place: Place, effects: tuple[Effect, ...], records: tuple[Record, ...] = ()) -> None:
        for effect in effects:
            if isinstance(effect, Truncate):
                self.logs[place].truncate(effect.offset)
            elif isinstance(effect, Append):
                for record in records:
                    self.logs[place].append(record)

    def leader_at(self, place: Place) -> Leader | None:
        role = self.replicas[place].role if place in self.replicas and place[0] in self.brokers else None
        return role if isinstance(role, Leader) else None

    def produce(self, place: Place, value: str) -> None:
        leader = self.leader_at(place)
        try:
            if leader is None:
                return
            leader.check_enough_in_sync()
        except MillraceError:
            return
        log, record = self.logs[place], (leader.epoch, value)
        log.append(record)
        self.pending[place].append((log.log_end_offset, record))
        self.follow(place, leader.appended(log.log_end_offset, self.now))

    def follow(self, place: Place, outcome: LeaderOutcome) -> None:
        leader = self.leader_at(place)
        if leader is None:
            return
        if outcome.has_watermark_risen:
            for end, record in list(self.pending[place]):
                try:
                    if leader.is_acknowledged(end):
                        self.acknowledged[place[1]][end - 1] = record
                        self.pending[place].remove((end, record))
                except MillraceError:
                    self.pending[place].remove((end, record))
        if outcome.alter_isr is not None:
            self.alter(place, leader, outcome.alter_isr)

    def alter(self, place: Place, leader: Leader, asked: AlterIsr) -> None:
        broker_id, partition = place
        if self.controller is None or not self.controller.is_active:
            return  # the request stays in flight, and the next controller sends the whole state
        change = IsrChange(isr=asked.isr, leader_epoch=asked.leader_epoch, partition_epoch=asked.partition_epoch)
        answers = self.event("alter_isrs", broker_id, self.brokers[broker_id].epoch, {partition: change})
        answer = None if answers is None else answers[partition]
        if isinstance(answer, MillraceError):
            leader.isr_refused(asked, answer, self.now)
        elif answer is not None and self.leader_at(place) is leader:
            outcome = leader.isr_altered(answer.isr, answer.leader_epoch, answer.partition_epoch, self.now)
            self.follow(place, outcome)

    def fetch(self, place: Place) -> None:
        replica = self.replicas.get(place)
        follower = replica.role if replica is not None and place[0] in self.brokers else None
        question = follower.question(self.now) if isinstance(follower, Follower) else None
        if not isinstance(follower, Follower) or not isinstance(question, FetchFrom):
            return
        source = (follower.leader, place[1])
        try:
            if source not in self.replicas or source[0] not in self.brokers:
                return
            leader = self.replicas[source].leading(question.leader_epoch)
            log, diverging = self.logs[source], None
            if question.last_epoch is not None:
                diverging = find_divergence("t", log, question.offset, question.last_epoch)
            if diverging is None:
                self.follow(source, leader.fetched(place[0], question.offset, 0, self.now))
        except MillraceError as error:
            follower.failed(question, error, self.now)
            return
        end = question.offset if diverging else min(question.offset + 3, log.log_end_offset)
        records = tuple(log.records[question.offset : end])
        answer = FetchedRecords(end_offset=end, high_watermark=leader.high_watermark, diverging=diverging)
        self._carry_out_on(place, follower.fetched(question, answer), records)

    def tick(self, ms: int) -> None:
        self.now += ms
        for place in sorted(self.replicas):
            leader = self.leader_at(place)
            if leader is not None:
                self.follow(place, leader.shrink_isr(self.now))

    def check(self) -> None:
        for partition, kept in self.acknowledged.items():
            for broker_id in self.leadership[partition].isr:
                records = self.logs[broker_id, partition].records
                for offset, record in kept.items():
                    assert records[offset : offset + 1] == [record], f"{partition} on {broker_id} lost {record}"
        for one, other in combinations(sorted(self.replicas), 2):
            if one[1] == other[1]:
                upto = min(self.replicas[each].high_watermark for each in (one, other))
                assert self.logs[one].records[:upto] == self.logs[other].records[:upto]


def act(world: Whole, chance: random.Random, number: int) -> None:
    draw, broker_id = chance.random(), chance.choice(BROKERS)
    places = sorted(world.replicas)
    if draw < 0.02:
        if broker_id in world.brokers:
            world.stop(broker_id)
        else:
            world.start(broker_id)
    elif draw < 0.03:
        world.crash_after = chance.randrange(8)
    elif draw < 0.05 or world.controller is None:
        world.elect(broker_id)
    elif draw < 0.07:
        world.tick(chance.choice([500, 40_000]))
    elif draw < 0.08:
        target = tuple(chance.sample(BROKERS, 3))
        world.event("reassign", {chance.choice(sorted(world.assignments)): target})
    elif draw < 0.09 and broker_id in world.controller.context.brokers and broker_id in world.brokers:
        world.event("shut_down", broker_id, world.brokers[broker_id].epoch)
    elif draw < 0.4:
        world.deliver(broker_id)
    elif draw < 0.55 and places:
        world.produce(chance.choice(places), f"v{number}")
    elif places:
        world.fetch(chance.choice(places))


def finish(world: Whole) -> None:
    """Repair everything. Then every partition accepts records, and all its replicas get them."""
    world.crash_after = None
    world.elect()
    for broker_id in BROKERS:
        world.start(broker_id)
    for number in range(80):
        world.settle()
        for place in sorted(world.replicas):
            world.fetch(place)
        world.check()
        world.tick(1_000)
        if number == 50:
            for place in sorted(world.replicas):
                world.produce(place, "last")


@pytest.mark.parametrize("run", range(30))
def test_nothing_acknowledged_is_lost_and_all_continues_in_the_end(run: int, seed: int) -> None:
    chance, world = random.Random(seed), Whole(*BROKERS)
    world.elect()
    world.create("t", (1, 2, 3), (2, 3, 4))
    for number in range(800):
        act(world, chance, number)
        world.check()
    finish(world)
    for partition, assignment in world.assignments.items():
        assert "last" in {value for _, value in world.acknowledged[partition].values()}
        assert not assignment.is_being_reassigned
        logs = [world.logs[broker_id, partition].records for broker_id in assignment.replicas]
        assert all(log == logs[0] for log in logs)

"""Invariants of a simulated cluster, checked after every step.

* Each partition has one sequence of committed bytes. It only grows, and replicas with a part of it have the same bytes.
* A replica's high watermark does not decrease while its broker lives, and neither do leader and controller epochs.
* A leader's high watermark is as high as it may be. It waits for no event that may never come.
* Each epoch of a partition has at most one leader, and this leader begins with all committed records.
* The ISR in ZooKeeper contains only assigned replicas, and always the leader. Each of them has all committed records,
  if its broker is up.
* A broker's registration is removed with its session, or because its process is dead or refuses connections. A paused
  or disconnected process keeps it.
* A broker that was taken for dead and registers again does not lead in an earlier leader epoch.
* In a generation of a group each partition has one owner, and the generation has one assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from millrace.coordination import NoNodeError, paths
from millrace.coordination.nodes import PartitionStateNode, TopicNode, decode_epoch
from millrace.records import scan_headers
from millrace_broker.log import PartitionLog
from millrace_broker.replication.core import Leader
from millrace_broker.replication.runtime import HostedReplica

from ...histories.history import Place
from .machine import Machine

if TYPE_CHECKING:
    from .world import World

_CHUNK_BYTES: Final = 10**6
Key = tuple[str, int, bytes]
"""A partition of one incarnation of a topic: its name, its number, the topic's id."""


@dataclass
class _Committed:
    """A partition's committed bytes, and its leaders."""

    data: bytearray = field(default_factory=bytearray)
    ends: dict[int, int] = field(default_factory=lambda: {0: 0})
    """Positions in ``data`` of the offsets at which a high watermark was observed."""
    end: int = 0
    leaders: dict[int, str] = field(default_factory=dict)
    """The leader of each epoch."""

    def between(self, start: int, end: int) -> bytes:
        return bytes(self.data[self.ends[start] : self.ends[end]])


@dataclass(slots=True)
class _Seen:
    """The last observed state of a replica.

    The state is that of one run of the replica's broker. ``checked_to`` is the end of the compared bytes.
    """

    process: str
    key: Key
    state: tuple[int, int, int] = (-1, -1, -1)
    """High watermark, log end, leader epoch."""
    has_led: bool = False
    """True if the replica led at the last look. It may have committed records since, before it lost its role."""
    checked_to: int = 0

    @property
    def name(self) -> str:
        return f"{self.process} {self.key[0]}-{self.key[1]}"


class Invariants:
    """The invariants of this module."""

    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._committed: Final[dict[Key, _Committed]] = {}
        self._seen: Final[dict[HostedReplica, _Seen]] = {}
        self._changes = -1
        self._owners: Final[dict[tuple[str, int], dict[Place, str]]] = {}
        self._controller_epoch = -1
        self._registered: dict[str, int] = {}
        """Sessions of the registered brokers."""
        self._taken_for_dead: Final[dict[str, int]] = {}
        """Sessions of brokers whose registrations were removed, and that have not registered again yet."""
        self._observer: Final = world.ensemble.store.connect()
        self._states: Final[dict[str, tuple[tuple[int, int], PartitionStateNode]]] = {}
        self._topics: dict[str, TopicNode] = {}
        self._deleted: frozenset[str] = frozenset()
        """Topics whose logs are being deleted one by one."""

    def check(self) -> None:
        """Check everything that has changed, and report violations to the world."""
        changed = [each for machine in self._world.machines for each in self.observe(machine)]
        for replica, seen, is_new_epoch in changed:
            if is_new_epoch:
                self._check_leader(replica, seen)
        if self._changes != self._world.ensemble.changes:
            self._changes = self._world.ensemble.changes
            self._check_controller()
            self._check_registrations()
            self._topics = self._read_topics()
            self._deleted = frozenset(self._children(paths.DELETE_TOPICS))
            keys = self._present()
        else:  # the ISR of the partition is unchanged, so only the replicas that changed are checked
            of_changed = {seen.key for _, seen, _ in changed}
            keys = [key for key in self._present() if key in of_changed] if of_changed else []
        for key in keys:
            self._check_isr(key, self._committed[key])

    # --- committed bytes -------------------------------------------------------------------------------------

    def observe(self, machine: Machine) -> list[tuple[HostedReplica, _Seen, bool]]:
        """Record the bytes that a machine's replicas consider committed, and return the changed replicas.

        The last element tells whether there is another leader epoch.
        """
        changed: list[tuple[HostedReplica, _Seen, bool]] = []
        if machine.broker is None or machine.process is None:
            return changed
        for replica in machine.broker.replicas.hosted():
            log = replica.log
            state = (log.high_watermark, log.log_end_offset, replica.machine.leader_epoch)
            if state[0] < state[1] and not machine.process.is_paused:
                self._check_watermark(machine, replica)
            seen = self._seen.get(replica)
            if seen is None:
                key = (log.topic, log.partition, log.topic_id.bytes)
                seen = self._seen[replica] = _Seen(machine.process.name, key)
            elif state == seen.state:
                continue
            before, seen.state = seen.state, state
            if state[2] < before[2]:
                self._wrong(f"{seen.name}: the leader epoch went back from {before[2]} to {state[2]}")
            if state[0] < before[0]:
                self._wrong(f"{seen.name}: the high watermark went back from {before[0]} to {state[0]}")
            elif state[0] > before[0]:
                self._take(replica, seen, state[0])
            seen.has_led = replica.leads
            changed.append((replica, seen, state[2] != before[2]))
        return changed

    def _check_watermark(self, machine: Machine, replica: HostedReplica) -> None:
        leader = replica.machine.role
        if machine.broker is None or not isinstance(leader, Leader) or replica.is_alone:
            return
        # A follower that stops catching up is noticed by the next check for lag.
        now_ms = machine.broker.replicas.now_ms() - leader.settings.replica_lag_time_max_ms // 2
        if (reachable := leader.reachable_watermark(now_ms)) > leader.high_watermark:
            self._wrong(f"{machine.host} {replica.name}: the high watermark is {leader.high_watermark} of {reachable}")

    def _take(self, replica: HostedReplica, seen: _Seen, watermark: int) -> None:
        """Record that a replica considers the records before a high watermark committed."""
        log, committed = replica.log, self._committed.setdefault(seen.key, _Committed())
        known = min(watermark, committed.end)
        if known not in committed.ends:
            return  # within a range that was observed as one piece, so it is checked when the replica has more
        self._compare(seen.name, log, committed, seen.checked_to, known)
        seen.checked_to = max(seen.checked_to, known)
        if watermark > committed.end:
            if not (replica.leads or seen.has_led):
                self._wrong(f"{seen.name}: a follower takes {watermark} for committed, its leaders {committed.end}")
                return
            batches = read_all(log, committed.end, watermark)
            committed.data += batches
            committed.end = seen.checked_to = watermark
            committed.ends[watermark] = len(committed.data)
            self._world.recorder.took(Place(*seen.key[:2]), batches)

    def _compare(self, name: str, log: PartitionLog, committed: _Committed, start: int, end: int) -> None:
        if start >= end:
            return
        if log.log_end_offset < end:
            self._wrong(f"{name}: ends at {log.log_end_offset}, committed is up to {end}")
        elif read_all(log, start, end) != committed.between(start, end):
            self._wrong(f"{name}: {start} to {end} are not what was committed")

    # --- leaders ---------------------------------------------------------------------------------------------

    def _check_leader(self, replica: HostedReplica, seen: _Seen) -> None:
        """Check that a leader is the only one of its new epoch, and has all committed records."""
        if not isinstance(replica.machine.role, Leader):
            return
        epoch, committed = replica.machine.leader_epoch, self._committed.setdefault(seen.key, _Committed())
        broker = seen.process.partition(".")[0]
        other = committed.leaders.setdefault(epoch, broker)
        if other != broker:
            self._wrong(f"{seen.name}: {other} leads in epoch {epoch} as well")
        self._world.note(f"{seen.name} is led in epoch {epoch}, to {seen.state[1]}, committed {committed.end}")
        if epoch >= max(committed.leaders):  # an older leader does not know its replacement yet
            self._compare(seen.name, replica.log, committed, 0, committed.end)

    def newest_leader(self, place: Place) -> str:
        """Return the leader of the newest epoch that has had one, or "" before the first."""
        leaders = next((each.leaders for key, each in self._committed.items() if key[:2] == place), {})
        return leaders[max(leaders)] if leaders else ""

    def _check_controller(self) -> None:
        try:
            epoch = decode_epoch(self._observer.get(paths.CONTROLLER_EPOCH)[0])
        except NoNodeError:
            return
        if epoch < self._controller_epoch:
            self._wrong(f"the controller epoch went back from {self._controller_epoch} to {epoch}")
        elif epoch > self._controller_epoch:
            self._world.note(f"controller epoch {epoch}")
        self._controller_epoch = epoch

    def _check_registrations(self) -> None:
        """Check that no live process is taken for dead, unless it refused connections."""
        before, ensemble = self._registered, self._world.ensemble
        found = {each: self._observer.exists(f"{paths.BROKER_IDS}/{each}") for each in self._children(paths.BROKER_IDS)}
        self._registered = {each: stat.ephemeral_owner for each, stat in found.items() if stat is not None}
        for broker in self._registered.keys() & self._taken_for_dead.keys():
            if self._registered[broker] == self._taken_for_dead.pop(broker):
                self._check_fenced(int(broker))
        for broker, owner in before.items():
            session = ensemble.opened[owner]
            if self._registered.get(broker) == owner or session.has_ended:
                continue
            process = session.process
            if not process.is_dead and process not in self._world.network.have_refused:
                self._wrong(f"{process.name} lives and accepts connections, and was taken for dead")
            self._world.note(f"{process.name} is taken for dead")
            self._taken_for_dead[broker] = owner

    def _check_fenced(self, broker_id: int) -> None:
        """Check that a broker which registered again under the same session knows that others lead."""
        machine = next(each for each in self._world.machines if each.broker_id == broker_id)
        hosted = [] if machine.broker is None else machine.broker.replicas.hosted()
        for replica in hosted:
            state = self._state(*replica.key)
            if replica.leads and state is not None and replica.machine.leader_epoch < state.leader_epoch:
                self._wrong(
                    f"{machine.host} was taken for dead, has registered again, and goes on leading {replica.name} "
                    f"in epoch {replica.machine.leader_epoch}, it is {state.leader_epoch}"
                )

    def in_sync(self, place: Place) -> tuple[int, ...]:
        """Return the ISR of a partition as ZooKeeper has it."""
        state = self._state(*place)
        return () if state is None else state.isr

    def _check_isr(self, key: Key, committed: _Committed) -> None:
        topic, number, _ = key
        state = self._state(topic, number)
        if state is None:
            return
        where = f"the ISR {state.isr} of {topic}-{number}, epoch {state.leader_epoch},"
        assigned = self._topics[topic].assignment.get(number, ())
        if not set(state.isr) <= set(assigned):
            self._wrong(f"{where} has others than the replicas {assigned}")
        if state.leader >= 0 and state.leader not in state.isr:
            self._wrong(f"{where} is without the leader {state.leader}")
        for machine in self._world.machines:
            log = self._log(machine, key)
            if machine.broker_id not in state.isr or (log is None and not self._must_have_logs(machine, topic)):
                continue
            end = 0 if log is None else log.log_end_offset
            if not end and topic in self._deleted:
                continue  # deleted, and perhaps created again by a LeaderAndIsr of the next controller, as in Kafka
            if end < committed.end:
                self._wrong(f"{where} has {machine.host}, with {end} of {committed.end} committed records")

    def _must_have_logs(self, machine: Machine, topic: str) -> bool:
        """Tell whether a log that a broker lacks was never created, or was deleted."""
        return machine.broker is not None and not machine.is_stopping and topic not in self._deleted

    def _state(self, topic: str, number: int) -> PartitionStateNode | None:
        path = paths.partition_state_path(topic, number)
        try:
            data, stat = self._observer.get(path)
        except NoNodeError:
            return None
        known, seen = self._states.get(path), (stat.created_id, stat.modified_id)
        if known is not None and known[0] == seen:
            return known[1]
        state = PartitionStateNode.decode(data)
        if known is not None and known[0][0] == stat.created_id and state.leader_epoch < known[1].leader_epoch:
            self._wrong(f"{topic}-{number}: epoch {known[1].leader_epoch} was followed by {state.leader_epoch}")
        self._world.note(f"{topic}-{number}: leader {state.leader}, epoch {state.leader_epoch}, ISR {state.isr}")
        self._states[path] = (seen, state)
        return state

    # --- groups ----------------------------------------------------------------------------------------------

    def owned(self, group: str, generation: int, member: str, places: Sequence[Place]) -> None:
        """Record a member's assigned partitions."""
        owners = self._owners.setdefault((group, generation), {})
        for place in places:
            if owners.setdefault(place, member) != member:
                self._wrong(f"{place} is {member}'s and {owners[place]}'s in generation {generation} of {group}")

    # --- at rest ---------------------------------------------------------------------------------------------

    def are_replicas_equal(self) -> bool:
        """Tell whether all replicas have all records and know that they are committed."""
        for key in self._present():
            topic, number, _ = key
            state, logs, assigned = self._state(topic, number), self._logs(key), self._topics[topic].assignment[number]
            if state is None or state.leader < 0 or {*state.isr} != {*assigned} or len(logs) < len(assigned):
                return False
            ends = {(each.log_end_offset, each.high_watermark) for each in logs}
            if len(ends) != 1 or len(set(*ends)) != 1:
                return False
        return True

    def check_at_rest(self) -> None:
        """Check that every replica has all committed bytes from the first one on."""
        for key in self._present():
            for log in self._logs(key):
                self._compare(f"at rest: {log.name}", log, self._committed[key], 0, self._committed[key].end)

    def _present(self) -> list[Key]:
        """Return the partitions of existing topics that were not deleted or created again since."""
        ids = {name: topic.topic_id.bytes for name, topic in self._topics.items()}
        return [key for key in self._committed if ids.get(key[0]) == key[2]]

    def _read_topics(self) -> dict[str, TopicNode]:
        names = self._children(paths.TOPICS)
        return {name: TopicNode.decode(self._observer.get(paths.topic_path(name))[0]) for name in names}

    def _children(self, path: str) -> list[str]:
        """Return a node's children, or none if the node does not exist yet."""
        return [] if self._observer.exists(path) is None else self._observer.children(path)

    def _logs(self, key: Key) -> list[PartitionLog]:
        """Return the logs of all running replicas.

        A broker that was away when it lost a replica may still have its files.
        """
        replicas = self._topics[key[0]].assignment[key[1]]
        found = [self._log(machine, key) for machine in self._world.machines if machine.broker_id in replicas]
        return [log for log in found if log is not None]

    def _log(self, machine: Machine, key: Key) -> PartitionLog | None:
        """Return a machine's log of a partition, if its broker runs and has it."""
        log = None if machine.broker is None else machine.broker.logs.get(*key[:2])
        return log if log is not None and log.topic_id.bytes == key[2] else None

    def leader_log(self, place: Place) -> PartitionLog:
        """Return the log of a partition's leader."""
        state = self._state(*place)
        assert state is not None
        machine = next(each for each in self._world.machines if each.broker_id == state.leader)
        log = self._log(machine, next(key for key in self._present() if key[:2] == place))
        assert log is not None
        return log

    def _wrong(self, what: str) -> None:
        self._world.violated(what)


def read_all(log: PartitionLog, start: int, end: int) -> bytes:
    """Return the batches between two offsets, from all segments."""
    parts = []
    while start < end:
        data = log.read_to_end(start, _CHUNK_BYTES)
        for position, header in scan_headers(data):
            if header.base_offset < end:
                parts.append(data[position : position + header.size_bytes])
            start = header.next_offset
    return b"".join(parts)

"""Model test of group members and a coordinator, with random events."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.clients.assignors import MemberSubscription, find_assignor
from millrace.clients.membership.requests import Heartbeat, Join, Joined, Leave, Request, Sync
from millrace.clients.membership.state import NO_GENERATION, Membership, Timing
from millrace.clients.model import TopicPartition
from millrace.errors import (
    BrokerUnavailableError,
    IllegalGenerationError,
    MemberIdRequiredError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)

TIMING = Timing(session_timeout_s=45, heartbeat_interval_s=3, max_poll_interval_s=300)
COUNTS = {"t": 4, "u": 3}


@dataclass
class _Known:
    """A member as the coordinator has it."""

    join: Join
    is_waiting: bool = True
    has_synced: bool = False


@dataclass
class _Coordinator:
    """Kafka's classic group as its members see it.

    The coordinator knows the members, the generation and the assignment.
    """

    assignor_name: str
    generation: int = 0
    phase: str = "empty"
    members: dict[str, _Known] = field(default_factory=dict)
    assignments: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    ids: int = 0

    def new_id(self) -> str:
        self.ids += 1
        return f"m{self.ids}"

    def prepare(self) -> None:
        if self.phase in ("stable", "completing"):
            for known in self.members.values():
                known.is_waiting = False
        self.phase = "preparing" if self.members else "empty"

    def join(self, join: Join) -> None:
        if join.member_id not in self.members and self.phase != "preparing":
            self.prepare()
        if self.phase != "preparing":
            self.prepare()
        self.phase = "preparing"
        self.members[join.member_id] = _Known(join)

    def complete(self) -> None:
        """Complete the join with the expected members that have joined, and remove the others."""
        self.members = {name: known for name, known in self.members.items() if known.is_waiting}
        self.generation += 1
        self.phase = "completing" if self.members else "empty"
        self.assignments = {}

    def leader(self) -> str:
        return min(self.members)

    def share_out(self) -> None:
        assignor = find_assignor(self.assignor_name)
        subscriptions = [
            MemberSubscription(
                member_id=name,
                topics=known.join.topics,
                owned_partitions=tuple(sorted(known.join.owned)),
                generation=known.join.generation,
            )
            for name, known in self.members.items()
        ]
        shared = assignor.assign(COUNTS, subscriptions)
        self.assignments = {name: frozenset(partitions) for name, partitions in shared.items()}
        self.phase = "stable"

    def remove(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is not None:
            self.prepare()


@dataclass
class _Client:
    """A consumer with its membership, its partitions and its request in flight."""

    state: Membership
    reading: frozenset[TopicPartition] = frozenset()
    asked: Request | None = None
    was_taken: bool = False


class Members(RuleBasedStateMachine):
    """A state machine of members of a classic group.

    Its rules are polls, requests, answers, lost answers, evictions and changes of subscription, in any order.
    """

    clients: list[_Client]
    now: float = 0.0

    @initialize(cooperative=st.booleans(), count=st.integers(1, 4), sticky=st.booleans(), settled=st.booleans())
    def start(self, cooperative: bool, count: int, sticky: bool, settled: bool) -> None:
        name = "cooperative-sticky" if cooperative else ("sticky" if sticky else "range")
        self.coordinator = _Coordinator(name)
        self.clients = [
            _Client(Membership(timing=TIMING, topics=frozenset({"t"}), is_cooperative=cooperative))
            for _ in range(count)
        ]
        if settled:
            self.go_on(8, 9)

    def _pick(self, number: int) -> _Client:
        return self.clients[number % len(self.clients)]

    @rule(number=st.integers(0, 3))
    def poll(self, number: int) -> None:
        client = self._pick(number)
        for _ in range(10):
            if client.state.changed is not None:
                client.reading = client.state.changed.owned
                client.state = client.state.took_changes()
                continue
            client.state, prepare = client.state.polled(self.now)
            if prepare is None:
                return
            client.reading -= prepare.revoked | prepare.lost
            client.state = client.state.prepared(prepare)
        raise AssertionError("a poll never ended")

    @rule(number=st.integers(0, 3))
    def ask(self, number: int) -> None:
        """Send the pending request. The coordinator may answer joins and syncs later."""
        client = self._pick(number)
        if client.asked is None:
            client.state, client.asked = client.state.request(self.now)
            client.was_taken = False
        if client.asked is not None and not client.was_taken:
            client.was_taken = True
            self._receive(client, client.asked)

    def _receive(self, client: _Client, asked: Request) -> None:
        match asked:
            case Join():
                if not asked.member_id:
                    self._refuse(client, MemberIdRequiredError("x"), self.coordinator.new_id())
                elif asked.member_id in self.coordinator.members or asked.generation == NO_GENERATION:
                    self.coordinator.join(asked)
                else:
                    self._refuse(client, UnknownMemberError("x"))
            case Sync():
                self._receive_sync(client, asked)
            case Heartbeat():
                error = self._check(asked.member_id, asked.generation)
                if error is None and self.coordinator.phase == "preparing":
                    error = RebalanceInProgressError("x")
                if error is not None:
                    self._refuse(client, error)
                else:
                    client.state = client.state.heartbeat_answered(asked, self.now)
                    client.asked = None
            case Leave():
                self.coordinator.remove(asked.member_id)
                client.asked = None

    def _receive_sync(self, client: _Client, sync: Sync) -> None:
        error = self._check(sync.joined.member_id, sync.joined.generation)
        if error is None and self.coordinator.phase == "preparing":
            error = RebalanceInProgressError("x")
        if error is not None:
            self._refuse(client, error)
        elif self.coordinator.phase == "completing" and sync.joined.is_leader:
            self.coordinator.share_out()

    def _check(self, member_id: str, generation: int) -> MillraceError | None:
        if member_id not in self.coordinator.members:
            return UnknownMemberError("x")
        return IllegalGenerationError("x") if generation != self.coordinator.generation else None

    def _refuse(self, client: _Client, error: MillraceError, member_id: str = "") -> None:
        assert client.asked is not None
        client.state = client.state.failed(client.asked, error, self.now, member_id=member_id)
        client.asked = None

    @precondition(lambda self: self.coordinator.phase == "preparing")
    @rule(impatient=st.booleans())
    def complete_join(self, impatient: bool) -> None:
        """Complete the rebalance, because all members have joined or its timeout is over."""
        if not impatient and not all(known.is_waiting for known in self.coordinator.members.values()):
            return
        if not any(known.is_waiting for known in self.coordinator.members.values()):
            return
        self.coordinator.complete()
        leader = self.coordinator.leader()
        for client in self.clients:
            asked = client.asked
            if isinstance(asked, Join) and client.was_taken and asked.member_id in self.coordinator.members:
                answer = Joined(
                    generation=self.coordinator.generation,
                    member_id=asked.member_id,
                    protocol=self.coordinator.assignor_name,
                    is_leader=asked.member_id == leader,
                )
                client.state = client.state.join_answered(asked, answer, self.now)
                client.asked = None

    @rule(number=st.integers(0, 3))
    def answer_sync(self, number: int) -> None:
        client = self._pick(number)
        if not isinstance(client.asked, Sync) or not client.was_taken:
            return
        joined = client.asked.joined
        error = self._check(joined.member_id, joined.generation)
        if error is None and self.coordinator.phase == "preparing":
            error = RebalanceInProgressError("x")
        if error is not None:
            self._refuse(client, error)
        elif self.coordinator.phase == "stable":
            assigned = self.coordinator.assignments[joined.member_id]
            client.state = client.state.sync_answered(client.asked, assigned, self.now)
            client.asked = None

    @rule(rounds=st.integers(1, 8), but=st.integers(0, 7))
    def go_on(self, rounds: int, but: int) -> None:
        """Continue without failures, but perhaps do not poll one of the members."""
        for _ in range(rounds):
            for number in range(len(self.clients)):
                if number != but:
                    self.poll(number)
                self.ask(number)
            if self.coordinator.phase == "preparing":
                self.complete_join(False)
            for number in range(len(self.clients)):
                self.answer_sync(number)
            self.at_most_one_owner_in_a_generation()
            self.members_that_the_group_knows_read_different_partitions()
            self.now += 4.0

    def teardown(self) -> None:
        """Check that without further failures each partition is soon read by one member that subscribes to it."""
        if not hasattr(self, "clients"):
            return
        for client in self.clients:
            if client.asked is not None:
                self._refuse(client, BrokerUnavailableError("x"))
        known = {client.state.member_id for client in self.clients}
        for member_id in [name for name in self.coordinator.members if name not in known]:
            self.coordinator.remove(member_id)
        self.go_on(25, 9)
        wanted = {topic for client in self.clients for topic in client.state.topics}
        read = sorted(partition for client in self.clients for partition in client.reading)
        assert read == sorted(TopicPartition(topic, n) for topic in wanted for n in range(COUNTS[topic]))

    @rule(number=st.integers(0, 3))
    def lose_the_answer(self, number: int) -> None:
        """Break the connection before or after the coordinator got the request."""
        client = self._pick(number)
        if client.asked is not None:
            self._refuse(client, BrokerUnavailableError("x"))

    @rule(number=st.integers(0, 3))
    def evict(self, number: int) -> None:
        """Let a member's session time out at the coordinator."""
        self.coordinator.remove(self._pick(number).state.member_id)

    @rule(seconds=st.sampled_from([0.5, 5.0, 301.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=st.integers(0, 3), topics=st.sampled_from([{"t"}, {"u"}, {"t", "u"}]))
    def subscribe(self, number: int, topics: set[str]) -> None:
        client = self._pick(number)
        client.state = client.state.subscribed(frozenset(topics))

    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        client = self._pick(number)
        self.coordinator.remove(client.state.member_id)
        client.state, client.reading, client.asked = client.state.left(), frozenset(), None

    @invariant()
    def at_most_one_owner_in_a_generation(self) -> None:
        owners: dict[tuple[int, TopicPartition], int] = {}
        for number, client in enumerate(self.clients):
            if client.state.has_group:
                for partition in client.state.owned:
                    assert owners.setdefault((client.state.generation, partition), number) == number

    @invariant()
    def members_that_the_group_knows_read_different_partitions(self) -> None:
        seen: set[TopicPartition] = set()
        for client in self.clients:
            state = client.state
            # A removed member reads on until it learns of the removal. Its commits are refused.
            if state.member_id not in self.coordinator.members or not state.has_group:
                continue
            assert not seen & client.reading
            seen |= client.reading

    @invariant()
    def nothing_is_read_that_is_not_owned_or_about_to_be_given_up(self) -> None:
        for client in self.clients:
            changed = client.state.changed
            assert client.reading <= client.state.owned | (changed.revoked if changed is not None else frozenset())


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

"""A member of a group, event by event; and several of them around a model of a coordinator, in any order of events."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.clients.assignors import MemberSubscription, find_assignor
from millrace.clients.membership.requests import Heartbeat, Join, Joined, Leave, Prepare, Request, Sync
from millrace.clients.membership.state import NO_GENERATION, Membership, Phase, Timing
from millrace.clients.model import TopicPartition
from millrace.errors import (
    BrokerUnavailableError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)

TIMING = Timing(session_timeout_s=45, heartbeat_interval_s=3, max_poll_interval_s=300)
A, B, C = (TopicPartition("t", number) for number in range(3))


def _joined(state: Membership, owned: set[TopicPartition], *, generation: int = 1, now: float = 0.0) -> Membership:
    """Take a member through a whole join."""
    state, prepare = state.polled(now)
    if prepare is not None:
        state = state.prepared(prepare)
    state, join = state.request(now)
    assert isinstance(join, Join)
    answer = Joined(generation=generation, member_id="m", protocol="range", is_leader=False)
    state = state.join_answered(join, answer, now)
    state, sync = state.request(now)
    assert isinstance(sync, Sync)
    state = state.sync_answered(sync, frozenset(owned), now)
    assert state.changed is not None
    return state.took_changes()


def _member(**options: object) -> Membership:
    return Membership(timing=TIMING, topics=frozenset({"t"}), **options)  # type: ignore[arg-type]


def test_a_member_joins_with_the_id_that_it_is_given() -> None:
    state, prepare = _member().polled(0.0)
    assert prepare is None
    state, join = state.request(0.0)
    assert isinstance(join, Join)
    assert (join.member_id, join.generation) == ("", NO_GENERATION)
    state = state.failed(join, MemberIdRequiredError("x"), 0.0, member_id="m-1")
    state, again = state.request(0.0)
    assert isinstance(again, Join)
    assert again.member_id == "m-1"


def test_nothing_is_asked_for_before_the_first_poll() -> None:
    assert _member().request(1000.0)[1] is None


def test_an_eager_member_gives_up_everything_before_it_joins_again() -> None:
    state = _joined(_member(), {A, B}).asked_to_rejoin("because")
    state, prepare = state.polled(1.0)
    assert prepare == Prepare(revoked=frozenset({A, B}))
    assert state.can_commit
    assert not isinstance(state.request(1.0)[1], Join)
    state = state.prepared(prepare)
    join = state.request(1.0)[1]
    assert isinstance(join, Join)
    assert (join.owned, join.generation) == (frozenset(), 1)
    assert not state.can_commit


def test_a_cooperative_member_keeps_its_partitions_and_gives_up_what_it_no_longer_has() -> None:
    state = _joined(_member(is_cooperative=True), {A, B}).asked_to_rejoin("because")
    state, prepare = state.polled(1.0)
    assert prepare is None
    state, join = state.request(1.0)
    assert isinstance(join, Join)
    assert join.owned == {A, B}
    state = state.join_answered(join, Joined(generation=2, member_id="m", protocol="c", is_leader=False), 1.0)
    state, sync = state.request(1.0)
    assert isinstance(sync, Sync)
    state = state.sync_answered(sync, frozenset({A, C}), 1.0)
    assert state.changed is not None
    assert (state.changed.revoked, state.changed.added) == ({B}, {C})
    # It joins again, so that the others get what it gave up.
    assert state.took_changes().polled(1.0)[0].phase is Phase.JOINING


def test_a_topic_that_is_unsubscribed_is_given_up_before_joining() -> None:
    other = TopicPartition("u", 0)
    state = _joined(_member(is_cooperative=True), {A, other}).subscribed(frozenset({"t"}))
    state = state.subscribed(frozenset({"u"}))
    state, prepare = state.polled(1.0)
    assert prepare == Prepare(revoked=frozenset({A}))
    assert state.prepared(prepare).owned == {other}


@pytest.mark.parametrize(("error", "keeps_id"), [(UnknownMemberError("x"), False), (IllegalGenerationError("x"), True)])
def test_a_member_that_was_thrown_out_loses_its_partitions(error: MillraceError, keeps_id: bool) -> None:
    state = _joined(_member(), {A})
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    state = state.failed(beat, error, 3.0)
    assert (state.generation, bool(state.member_id)) == (NO_GENERATION, keeps_id)
    state, prepare = state.polled(4.0)
    assert prepare == Prepare(lost=frozenset({A}))
    assert state.prepared(prepare).phase is Phase.JOINING


def test_what_is_lost_while_partitions_are_given_up_is_told_too() -> None:
    other = TopicPartition("u", 0)
    state = _joined(_member(is_cooperative=True), {A, other}).subscribed(frozenset({"u"}))
    state, prepare = state.polled(3.0)
    assert prepare is not None
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    state = state.failed(beat, UnknownMemberError("x"), 3.0).prepared(prepare)
    assert state.phase is Phase.PREPARING
    state, more = state.polled(3.0)
    assert more == Prepare(lost=frozenset({other}))
    assert state.prepared(more).phase is Phase.JOINING


def test_a_heartbeat_is_due_every_interval_and_tells_of_a_rebalance() -> None:
    state = _joined(_member(), {A})
    assert state.request(2.9)[1] is None
    assert state.next_request_at() == 3.0
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    assert state.request(3.1)[1] is None
    state = state.failed(beat, RebalanceInProgressError("x"), 3.1)
    assert state.is_rebalancing
    assert state.polled(3.2)[1] == Prepare(revoked=frozenset({A}))


def test_a_member_that_is_not_polled_leaves_and_comes_back_when_polled() -> None:
    state = _joined(_member(), {A})
    state, leave = state.request(300.1)
    assert isinstance(leave, Leave)
    assert not state.has_group
    assert state.request(400.0)[1] is None
    state, prepare = state.polled(401.0)
    assert prepare == Prepare(lost=frozenset({A}))


def test_a_static_member_that_is_not_polled_falls_silent() -> None:
    state, request = _joined(_member(instance_id="i"), {A}).request(300.1)
    assert request is None
    assert not state.has_group


def test_a_fenced_member_does_not_come_back() -> None:
    state = _joined(_member(instance_id="i"), {A})
    state, beat = state.request(3.0)
    assert isinstance(beat, Heartbeat)
    state = state.failed(beat, FencedInstanceIdError("another one"), 3.0)
    assert isinstance(state.failure, FencedInstanceIdError)
    assert isinstance(state.took_failure().failure, FencedInstanceIdError)
    assert state.polled(4.0) == (state.polled(4.0)[0], None)


def test_what_is_refused_for_good_is_told_and_tried_again_when_polled() -> None:
    state, _ = _member().polled(0.0)
    state, join = state.request(0.0)
    assert isinstance(join, Join)
    state = state.failed(join, InconsistentGroupProtocolError("x"), 0.0)
    assert state.request(9.0)[1] is None
    assert isinstance(state.took_failure().request(9.0)[1], Join)


def test_errors_that_may_pass_are_waited_out_longer_and_longer() -> None:
    state, _ = _member().polled(0.0)
    now, waits = 0.0, []
    for _attempt in range(6):
        state, join = state.request(now)
        assert isinstance(join, Join)
        state = state.failed(join, BrokerUnavailableError("x"), now)
        assert state.request(now)[1] is None
        waits.append(state.next_request_at() - now)
        now = state.next_request_at()
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_late_answers_of_another_generation_are_nothing() -> None:
    state = _joined(_member(), {A})
    old = Heartbeat(member_id="m", generation=0)
    assert state.failed(old, UnknownMemberError("x"), 1.0) == state
    assert state.heartbeat_answered(old, 9.0) == state
    assert state.commit_failed(IllegalGenerationError("x"), 0, "m") == state


def test_a_refused_commit_tells_that_the_group_went_on() -> None:
    state = _joined(_member(), {A})
    assert not state.commit_failed(UnknownMemberError("x"), 1, "m").has_group
    assert state.commit_failed(RebalanceInProgressError("x"), 1, "m").is_rebalancing


def test_topics_that_change_during_a_rebalance_make_another() -> None:
    state, _ = _member().polled(0.0)
    state, join = state.request(0.0)
    assert isinstance(join, Join)
    state = state.subscribed(frozenset({"t", "u"}))
    state = state.join_answered(join, Joined(generation=1, member_id="m", protocol="r", is_leader=False), 0.0)
    state, sync = state.request(0.0)
    assert isinstance(sync, Sync)
    state = state.sync_answered(sync, frozenset({A}), 0.0)
    assert state.phase is Phase.STABLE
    assert state.is_rebalancing


# --- members around a coordinator ------------------------------------------------------------------------------------

COUNTS = {"t": 4, "u": 3}


@dataclass
class _Known:
    """A member as the coordinator knows it."""

    join: Join
    is_waiting: bool = True
    has_synced: bool = False


@dataclass
class _Coordinator:
    """Kafka's classic group, as far as members can tell: who is in it, in which generation, and who reads what."""

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
        """All that count have joined; the others are out."""
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
    """A consumer: its membership, what it reads, and its request under way."""

    state: Membership
    reading: frozenset[TopicPartition] = frozenset()
    asked: Request | None = None
    was_taken: bool = False


class Members(RuleBasedStateMachine):
    """Any order of polls, requests, answers, lost answers, evictions and wishes."""

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
        """Send the request that is due; the coordinator may answer joins and syncs later."""
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
        """All members have joined, or the time for it is up."""
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
        """Nothing goes wrong; but one of them perhaps is not polled."""
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
        """When nothing goes wrong any more, every partition is soon read by one member that wants it."""
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
        """The connection breaks, before or after the coordinator got the request."""
        client = self._pick(number)
        if client.asked is not None:
            self._refuse(client, BrokerUnavailableError("x"))

    @rule(number=st.integers(0, 3))
    def evict(self, number: int) -> None:
        """A session times out at the coordinator."""
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
            # A member that the group has thrown out reads on until it hears of it: its commits are refused.
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

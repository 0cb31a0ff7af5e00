"""Model test of groups with unreliable clients and late answers.

The model has no states. It keeps the answers to the clients: the members of each generation and the partitions of each
member. It also says what must follow when all clients behave and time passes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.clients.assignors import MemberSubscription, find_assignor
from millrace.clients.model import TopicPartition
from millrace.coordinator_records import ConsumerProtocolSubscription, write_versioned
from millrace.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from millrace_broker.groups.requests import GroupSettings, Identity, JoinAnswer, MemberIdGiven, SyncAnswer
from millrace_broker.groups.states import GroupState

from .world import World

PARTITIONS = {"t": 5, "u": 3}
SETTINGS = GroupSettings(initial_rebalance_delay_ms=1000, min_session_timeout_ms=1, max_size=6)


def subscription(topics: tuple[str, ...]) -> bytes:
    return write_versioned(ConsumerProtocolSubscription(topics=topics, user_data=None), 3)


@dataclass(eq=False)
class Client:
    """A consumer with its last answer and its call in flight."""

    instance: str | None
    topics: tuple[str, ...]
    member_id: str = ""
    generation: int = -1
    joined: JoinAnswer | None = None
    owned: list[TopicPartition] | None = None
    call: int | None = None
    is_dead: bool = False
    errors: list[type[MillraceError]] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        return Identity(member_id=self.member_id, group_instance_id=self.instance, generation_id=self.generation)

    def forget(self, *, member_id: bool = False) -> None:
        self.generation, self.joined, self.owned = -1, None, None
        if member_id:
            self.member_id = ""


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(SETTINGS)
        self.clients: list[Client] = []
        self.answered: Counter[int] = Counter()
        self.generations = [0]
        self.members_told: dict[int, set[str]] = {}
        self.owners: dict[tuple[int, TopicPartition], str] = {}

    # --- clients -------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.appear()
        self.clients.append(Client("i0", ("t", "u")))

    @rule()
    def appear(self) -> None:
        if len(self.clients) < 8:
            self.clients.append(Client(None, ("t",)))

    @rule(number=st.integers(0, 2))
    def appear_static(self, number: int) -> None:
        self.clients.append(Client(f"i{number}", ("t", "u")))

    def client(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients))

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        self.step(self.client(data))

    @precondition(lambda self: len(self.clients) > 1)
    @rule()
    def all_act(self) -> None:
        for client in list(self.clients):
            self.step(client)

    def step(self, client: Client) -> None:
        """Do the next step of a consumer."""
        self.listen()
        if client.is_dead or client.call is not None:
            return
        if client.joined is None:
            protocols = (("range", subscription(client.topics)),)
            if client.instance is None:
                protocols += (("roundrobin", subscription(client.topics)),)
            client.call = self.world.join(
                client.member_id,
                group_instance_id=client.instance,
                protocols=protocols,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=20_000,
            )
        elif client.owned is None:
            client.call = self.world.sync(client.identity, self.assign(client.joined))
        else:
            self.told(client, self.world.refusal("heartbeat", client.identity))
        self.listen()

    def assign(self, joined: JoinAnswer) -> dict[str, bytes]:
        if joined.leader != joined.member_id or joined.skip_assignment:
            return {}
        members = [
            MemberSubscription(member_id=member.member_id, topics=frozenset(topics_of(member.metadata)))
            for member in joined.members
        ]
        assignment = find_assignor(joined.protocol_name).assign(PARTITIONS, members)
        return {member_id: encode(partitions) for member_id, partitions in assignment.items()}

    def listen(self) -> None:
        """Give the clients the answers to their calls."""
        for client in self.clients:
            if client.call is not None and client.call in self.world.answers:
                self.answered[client.call] += 1
                answer = self.world.answers.pop(client.call)
                client.call = None
                self.take(client, answer)

    def take(self, client: Client, answer: Any) -> None:
        if isinstance(answer, MemberIdGiven):
            client.member_id = answer.member_id
        elif isinstance(answer, JoinAnswer):
            self.take_join(client, answer)
        elif isinstance(answer, SyncAnswer):
            client.owned = decode(answer.assignment)
            for partition in client.owned:
                owner = self.owners.setdefault((client.generation, partition), client.instance or client.member_id)
                assert owner == (client.instance or client.member_id), "two owners in one generation"
        else:
            self.told(client, type(answer))

    def take_join(self, client: Client, answer: JoinAnswer) -> None:
        assert answer.generation_id >= self.generations[-1] or answer.generation_id >= client.generation
        client.member_id, client.generation, client.joined = answer.member_id, answer.generation_id, answer
        if answer.leader == answer.member_id and answer.members:
            told = {member.member_id for member in answer.members}
            assert client.member_id in told, "the leader is a member"
            if not answer.skip_assignment:
                known = self.members_told.setdefault(answer.generation_id, told)
                assert known == told, "two leaders of one generation were told of different members"

    def told(self, client: Client, error: type[MillraceError] | None) -> None:
        if error is None:
            return
        client.errors.append(error)
        if error in (RebalanceInProgressError, InconsistentGroupProtocolError):
            client.forget()
        elif error in (UnknownMemberError, IllegalGenerationError):
            client.forget(member_id=True)
        elif error is FencedInstanceIdError:
            client.is_dead = True
        else:
            client.forget(member_id=client.instance is not None)

    # --- accidents -----------------------------------------------------------------------------------------

    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        self.client(data).is_dead = True

    @rule(data=st.data())
    def give_up_a_call(self, data: st.DataObject) -> None:
        client = self.client(data)
        if client.call is not None and client.call in self.world.parked:
            self.world.abandon(client.call)
            client.call = None

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = self.client(data)
        self.listen()
        if client.call is None and client.member_id and not client.is_dead:
            self.world.refusal("leave", Identity(member_id=client.member_id, group_instance_id=client.instance))
            client.is_dead = True

    @rule(data=st.data())
    def want_other_topics(self, data: st.DataObject) -> None:
        client = self.client(data)
        self.listen()
        if client.call is None:
            client.topics = ("t", "u") if client.topics == ("t",) else ("t",)
            client.forget()

    @rule(data=st.data(), generation=st.integers(-1, 5))
    def commit(self, data: st.DataObject, generation: int) -> None:
        client = self.client(data)
        identity = Identity(member_id=client.member_id, group_instance_id=client.instance, generation_id=generation)
        refusal = self.world.refusal("check_commit", identity)
        if refusal is None and generation >= 0:
            assert generation == self.world.group.generation_id, "a commit of another generation was accepted"
            assert client.member_id in self.world.group.members, "a commit of another member was accepted"

    @precondition(lambda self: self.world.stores)
    @rule(fails=st.booleans())
    def write_down(self, fails: bool) -> None:
        if fails:
            self.world.fail_store()
        else:
            self.world.store_done()

    @rule(ms=st.sampled_from([1, 500, 1000, 5000, 11_000, 21_000]))
    def wait(self, ms: int) -> None:
        self.world.pass_time(ms)

    # --- invariants ----------------------------------------------------------------------------------------

    @invariant()
    def calls_are_answered_once(self) -> None:
        assert all(count == 1 for count in self.answered.values())
        waiting = {client.call for client in self.clients if client.call is not None}
        assert self.world.parked <= waiting, "a call is parked without a caller"
        assert waiting <= self.world.parked | self.world.answers.keys(), "a caller waits for a call that is not parked"

    @invariant()
    def generations_never_regress(self) -> None:
        self.generations.append(self.world.group.generation_id)
        assert self.generations[-1] >= self.generations[-2]

    @invariant()
    def counts_are_right(self) -> None:
        members = self.world.group.members
        assert members.awaiting_join == sum(member.join_call is not None for member in members)
        names = Counter(name for member in members for name in {name for name, _ in member.protocols})
        assert +members._members_by_assignor == names
        assert {member.group_instance_id for member in members} - {None} == members._static.keys()
        assert (members.leader in members) if len(members) else members.leader is None

    @invariant()
    def every_member_can_end(self) -> None:
        """Check that each member which does not wait for the group has a timer, and that each waiting member is waited
        for.
        """
        group = self.world.group
        kinds = Counter(key.kind.value for key in self.world.timers)
        for member in group.members:
            is_waiting = member.join_call is not None or member.sync_call is not None
            assert is_waiting or member.timer_at_ms is not None
            assert member.sync_call is None or group.state is GroupState.COMPLETING_REBALANCE
            assert member.join_call is None or group.state in (GroupState.PREPARING_REBALANCE, GroupState.STABLE)
        assert kinds["session"] == sum(member.timer_at_ms is not None for member in group.members)
        assert kinds["pending"] == len(group.pending_members)
        if group.state is GroupState.PREPARING_REBALANCE:
            assert kinds["join"] == 1
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert not kinds["sync"]
        if group.state is GroupState.EMPTY:
            assert not len(group.members)

    def teardown(self) -> None:
        """Let all live clients behave and the disk work. Then the accepted members own all partitions."""
        for _ in range(200):
            for client in self.clients:
                self.step(client)
            self.world.stores_done()
            self.listen()
            self.world.pass_time(500)
        group = self.world.group
        living = [client for client in self.clients if not client.is_dead and client.owned is not None]
        assert group.state is (GroupState.STABLE if living else GroupState.EMPTY)
        assert len(group.members) == len(living)
        owned = Counter(partition for client in living for partition in client.owned or ())
        wanted = {topic for client in living for topic in client.topics}
        assert set(owned) == {TopicPartition(topic, number) for topic in wanted for number in range(PARTITIONS[topic])}
        assert not owned or max(owned.values()) == 1


def topics_of(metadata: bytes) -> tuple[str, ...]:
    from millrace.coordinator_records import read_subscription

    return read_subscription(metadata)[1].topics


def encode(partitions: list[TopicPartition]) -> bytes:
    return ",".join(f"{topic}-{number}" for topic, number in partitions).encode()


def decode(assignment: bytes) -> list[TopicPartition]:
    pairs = (text.rpartition("-") for text in assignment.decode().split(",") if text)
    return [TopicPartition(topic, int(number)) for topic, _, number in pairs]


TestGroupMachine = GroupMachine.TestCase

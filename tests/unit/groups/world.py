"""A group with the test's own clock, callers, timers and log."""

from __future__ import annotations

import itertools
from typing import Any

from millrace.coordinator_records import ConsumerProtocolSubscription, write_versioned
from millrace.errors import MillraceError, StorageError
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.effects import Answer, SetTimer, Store, StoredGroup, StoredMember, TimerKey
from millrace_broker.groups.requests import GroupSettings, Identity, JoinRequest, SyncRequest

SETTINGS = GroupSettings(initial_rebalance_delay_ms=3000, min_session_timeout_ms=6000, max_session_timeout_ms=60_000)
SESSION_MS = 10_000
REBALANCE_MS = 20_000
NOBODY = Identity(member_id="")


class World:
    """The effects of one group's state machine, carried out.

    ``stores`` wait for ``store_done``, oldest first.
    """

    def __init__(self, settings: GroupSettings = SETTINGS, group: ClassicGroup | None = None) -> None:
        self.now_ms = 1_000_000
        self.group = group or ClassicGroup("g", settings)
        self.timers: dict[TimerKey, int] = {}
        self.stores: list[Store] = []
        self.answers: dict[int, Any] = {}
        self.parked: set[int] = set()
        self._calls = itertools.count()
        self._members = itertools.count()
        self.settle()

    def settle(self) -> None:
        for effect in self.group.take_effects():
            if isinstance(effect, Answer):
                assert effect.call in self.parked, "answered twice, or never asked"
                self.parked.remove(effect.call)
                self.answers[effect.call] = effect.answer
            elif isinstance(effect, SetTimer):
                self.timers[effect.key] = self.now_ms + effect.delay_ms
            elif isinstance(effect, Store):
                self.stores.append(effect)
            else:
                self.timers.pop(effect.key, None)
        assert self.parked == self.group.open_calls, (
            "the state machine and the callers disagree about the waiting calls"
        )

    # --- requests ------------------------------------------------------------------------------------------

    def join(self, member_id: str = "", **fields: Any) -> int:
        call = next(self._calls)
        instance = fields.get("group_instance_id")
        request: dict[str, Any] = {
            "member_id": member_id,
            "new_member_id": f"{instance or 'c'}-{next(self._members)}",
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", b"r"),),
            **fields,
        }
        self.parked.add(call)
        self.group.join(call, JoinRequest(**request), self.now_ms)
        self.settle()
        return call

    def sync(self, identity: Identity, assignments: dict[str, bytes] | None = None, **fields: Any) -> int:
        call = next(self._calls)
        self.parked.add(call)
        request = SyncRequest(identity=identity, assignments=assignments or {}, **fields)
        self.group.sync(call, request, self.now_ms)
        self.settle()
        return call

    def refusal(self, name: str, *args: Any, **fields: Any) -> type[MillraceError] | None:
        """Return the error of ``heartbeat``, ``leave`` or ``check_commit``."""
        try:
            getattr(self.group, name)(*args, self.now_ms, **fields)
        except MillraceError as error:
            return type(error)
        finally:
            self.settle()
        return None

    def abandon(self, call: int) -> None:
        self.parked.discard(call)
        self.group.abandon(call, self.now_ms)
        self.settle()

    # --- the world -----------------------------------------------------------------------------------------

    def store_done(self, error: MillraceError | None = None) -> None:
        store = self.stores.pop(0)
        self.group.stored(store.token, error, self.now_ms)
        self.settle()

    def stores_done(self) -> None:
        while self.stores:
            self.store_done()

    def fail_store(self) -> None:
        self.store_done(StorageError("the disk is full"))

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while due := [(at_ms, key) for key, at_ms in self.timers.items() if at_ms <= end_ms]:
            at_ms, key = min(due, key=lambda pair: pair[0])
            del self.timers[key]
            self.now_ms = max(self.now_ms, at_ms)
            self.group.timer_fired(key, self.now_ms)
            self.settle()
        self.now_ms = end_ms

    # --- shortcuts -----------------------------------------------------------------------------------------

    def new_member_id(self, **fields: Any) -> str:
        return self.answers[self.join(**fields)].member_id

    def stable(self, *names: str, **fields: Any) -> dict[str, Identity]:
        """Bring an empty group to Stable with a member for each name. Names with a star are static members."""
        calls: dict[str, int] = {}
        for name in names:
            instance = name if name.endswith("*") else None
            member_id = "" if instance else self.new_member_id(**fields)
            calls[name] = self.join(member_id, group_instance_id=instance, **fields)
        while self.parked:
            self.pass_time(500)
        answers = {name: self.answers[call] for name, call in calls.items()}
        identities = {
            name: Identity(
                member_id=answer.member_id,
                group_instance_id=name if name.endswith("*") else None,
                generation_id=answer.generation_id,
            )
            for name, answer in answers.items()
        }
        assignments = {identities[name].member_id: name.encode() for name in names}
        leader = next(name for name in names if answers[name].leader == answers[name].member_id)
        for name in sorted(names, key=lambda name: name == leader):
            self.sync(identities[name], assignments if name == leader else None)
        self.stores_done()
        return identities


def other(identity: Identity, **changes: object) -> Identity:
    """Return an identity with changed fields."""
    fields = {
        "member_id": identity.member_id,
        "group_instance_id": identity.group_instance_id,
        "generation_id": identity.generation_id,
    }
    return Identity(**{**fields, **changes})  # type: ignore[arg-type]


def subscription(*topics: str, owned: int = -1) -> bytes:
    return write_versioned(ConsumerProtocolSubscription(topics=topics, user_data=None, generation_id=owned), 3)


def stored_member(member_id: str) -> StoredMember:
    return StoredMember(
        member_id=member_id,
        group_instance_id=None,
        client_id="c",
        client_host="/h",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        subscription=subscription("t"),
        assignment=b"mine",
    )


def restored(*member_ids: str, leader: str, settings: GroupSettings = SETTINGS) -> World:
    """Return a group of generation 4 as it was read from the log."""
    stored = StoredGroup(
        protocol_type="consumer",
        generation_id=4,
        protocol_name="range",
        leader=leader,
        members=tuple(stored_member(each) for each in member_ids),
    )
    return World(settings, ClassicGroup.restore("g", settings, stored, 1_000_000))

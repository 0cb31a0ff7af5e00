"""Foreign-key join of two tables (KIP-213), in three steps across two buckets.

A change of the left table becomes a *subscription* under its foreign key. The bucket of the right row stores
subscriptions and *responds*, at once and at each change of that row. Under the left row's key, a response is joined
with the left row, unless that row has changed since its subscription.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from millrace_streams.frames.codec import canonical_values
from millrace_streams.graph import AnswerNode, ResponseJoinNode, SubscribeNode
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.joins import Joining, TableView, key_of_values, keys_of_side, view_of
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, StatelessStep, typed
from millrace_streams.stores import KeyValueStore, StoreSpec, SubscriptionStore

_RIGHT_TABLE: Final = 1
_ANSWERS: Final = 1


class Instruction(StrEnum):
    """Instruction of a subscription."""

    LEAVE = "leave"
    """Remove the subscription without a response."""
    LEAVE_AND_ANSWER = "leave_and_answer"
    """Remove the subscription, and respond with no row."""
    ANSWER_ALWAYS = "answer_always"
    """Store the subscription, and respond even without a row, because an earlier result may have to be deleted."""
    ANSWER_IF_THERE = "answer_if_there"
    """Store the subscription, and respond if there is a row."""


class ForeignKeySubscription(NamedTuple):
    """Subscription of a left row to a right row.

    ``digest`` identifies the left value.
    """

    left_key: Any
    digest: str | None
    instruction: Instruction


class Answer(NamedTuple):
    """Response: the right value for the left row whose value had ``digest``."""

    digest: str | None
    value: Any


def digest_of(value: Any) -> str | None:
    """Return the digest of a value; None for None."""
    if value is None:
        return None
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class SubscribeStep(StatelessStep):
    """Step of a ``SubscribeNode``.

    The step converts changes of the left table to subscriptions by foreign key.
    """

    def run(self, inputs: Inputs, state: State) -> Output:
        """Emit the subscriptions of each change."""
        node, batch, out = self.operator.node, inputs.batch, Emitted()
        assert isinstance(node, SubscribeNode)
        latest = batch.latest if batch.latest is not None and self.operator.versioned[0] else [True] * batch.height
        # The other bucket compares digests of values that went through columns.
        values = canonical_values(batch.layout, batch.values)
        rows = zip(batch.keys, values, batch.olds, batch.times, latest, strict=True)
        new_wants = key_of_values(inputs, node.name, node.extractor, batch, batch.values, self.operator.result)
        old_wants = key_of_values(inputs, node.name, node.extractor, batch, batch.olds, self.operator.result)
        asks = _asks_left if node.kind == "left" else _asks_inner
        for row, (key, new, old, time_ms, newest) in enumerate(rows):
            if not newest:
                out.dropped += 1
                continue
            for wanted, instruction in asks(new, old, new_wants[row], old_wants[row]):
                out.add(row, wanted, ForeignKeySubscription(key, digest_of(new), instruction), time_ms)
        return out.output(self.operator.result)


def _asks_inner(new: Any, old: Any, new_wants: Any, old_wants: Any) -> list[tuple[Any, Instruction]]:
    if new_wants is None:
        return [] if old_wants is None else [(old_wants, Instruction.LEAVE_AND_ANSWER)]
    if old_wants is None:
        return [(new_wants, Instruction.ANSWER_IF_THERE)]
    if old_wants != new_wants:
        return [(old_wants, Instruction.LEAVE), (new_wants, Instruction.ANSWER_ALWAYS)]
    # Without a right row there was no result before, and there is none now.
    return [(new_wants, Instruction.ANSWER_IF_THERE)]


def _asks_left(new: Any, old: Any, new_wants: Any, old_wants: Any) -> list[tuple[Any, Instruction]]:
    if new is None and old is None:
        return []
    leaving = [(old_wants, Instruction.LEAVE)] if old_wants is not None and old_wants != new_wants else []
    return [*leaving, (new_wants, Instruction.ANSWER_ALWAYS)]


@dataclass(frozen=True)
class AnswerStep:
    """Step of an ``AnswerNode``.

    The inputs are the subscriptions and the right table's changes. A change of a right row is sent to all its
    subscribers, in order of their keys, with the change's timestamp. The response to a subscription has the larger
    timestamp of both. Subscriptions are stored by foreign key.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the subscriptions."""
        return (
            StoreSpec(
                name=self._node.store, kind="subscriptions", layout=self.operator.inputs[0], form="subscriptions"
            ),
        )

    def run(self, inputs: Inputs, state: State) -> Output:
        """Process subscriptions and changes in order."""
        out, reads = Emitted(), self.operator.reads[_RIGHT_TABLE]
        store = state.stores[self._node.store]
        assert reads is not None
        assert isinstance(store, SubscriptionStore)
        store.want(keys_of_side(inputs, 1))
        view = view_of(state, reads, keys_of_side(inputs, 0) | keys_of_side(inputs, 1), inputs)
        asked, right = inputs.batches
        versioned = self.operator.versioned[_RIGHT_TABLE]
        for turn, side, row in inputs.turns():
            if side != _RIGHT_TABLE:
                self._subscribe(turn, asked.keys[row], asked.values[row], asked.times[row], store, view, out)
                continue
            key, value, time_ms = right.keys[row], right.values[row], right.times[row]
            if versioned and right.latest is not None and not right.latest[row]:
                out.dropped += 1
                continue
            view.roll(key, value, time_ms)
            for left_key, digest in store.of(key):
                out.add(turn, left_key, Answer(digest, value), time_ms)
        return out.output(self.operator.result)

    def _subscribe(
        self,
        turn: int,
        wanted: Any,
        asked: ForeignKeySubscription,
        time_ms: int,
        store: SubscriptionStore,
        view: TableView,
        out: Emitted,
    ) -> None:
        leaves = asked.instruction in (Instruction.LEAVE, Instruction.LEAVE_AND_ANSWER)
        if wanted is not None:
            store.put(wanted, asked.left_key, None if leaves else asked.digest, time_ms)
        if asked.instruction is Instruction.LEAVE:
            return
        row = view.get(wanted, time_ms, turn) if wanted is not None else None
        if row is None and asked.instruction is Instruction.ANSWER_IF_THERE:
            return
        answered_ms = time_ms if row is None else max(time_ms, row.timestamp)
        value = row.value if row is not None and not leaves else None
        out.add(turn, asked.left_key, Answer(asked.digest, value), answered_ms)

    @property
    def _node(self) -> AnswerNode:
        node = self.operator.node
        assert isinstance(node, AnswerNode)
        return node


@dataclass(frozen=True)
class ResponseJoinStep:
    """Step of a ``ResponseJoinNode``.

    The inputs are the left table's changes and the responses.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the joined rows, if they are stored."""
        return self.operator.store_of_rows(self._node.store)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Join the responses that are still current."""
        node, out, reads = self._node, Emitted(), self.operator.reads[0]
        assert reads is not None
        view = view_of(state, reads, keys_of_side(inputs, 0) | keys_of_side(inputs, 1), inputs)
        left, answers = inputs.batches
        asked: list[tuple[int, int]] = []
        owns: list[Any] = []
        for turn, side, row in inputs.turns():
            if side != _ANSWERS:
                if left.latest is None or left.latest[row]:
                    view.roll(left.keys[row], left.values[row], left.times[row])
                continue
            own = view.get(answers.keys[row], answers.times[row], turn)
            asked.append((turn, row))
            owns.append(own.value if own is not None else None)
        others: list[Any] = []
        for (turn, row), value in zip(asked, canonical_values(left.layout, owns), strict=True):
            answer = answers.values[row]
            if digest_of(value) == answer.digest:
                out.add(turn, answers.keys[row], value, answers.times[row])
                others.append(answer.value)
        self._join(inputs, out, others)
        self._keep(state, out)
        return typed(node, out.output(self.operator.result), inputs)

    def _join(self, inputs: Inputs, out: Emitted, others: list[Any]) -> None:
        """Replace left values by joined values, None without one."""
        node, (left, answers) = self._node, self.operator.inputs
        pairs = list(zip(out.values, others, strict=True))
        rows = [
            row
            for row, (value, other) in enumerate(pairs)
            if value is not None and (other is not None or node.kind == "left")
        ]
        joined = Joining(node.name, node.joiner, answers.answered, self.operator.result).join_lists(
            inputs,
            [out.causes[row] for row in rows],
            left,
            [out.keys[row] for row in rows],
            [pairs[row][0] for row in rows],
            [pairs[row][1] for row in rows],
        )
        out.values = [None] * len(pairs)
        for row, value in zip(rows, joined, strict=True):
            out.values[row] = value

    def _keep(self, state: State, out: Emitted) -> None:
        """Store the joined rows, if they are stored, and set the old values."""
        node = self._node
        store = state.stores[node.store] if node.store is not None else None
        if not isinstance(store, KeyValueStore):
            return
        for row, (key, value, time_ms) in enumerate(zip(out.keys, out.values, out.times, strict=True)):
            stored = store.get(key)
            if node.sends_old:
                out.olds[row] = stored.value if stored is not None else None
            store.put(key, value, time_ms)

    @property
    def _node(self) -> ResponseJoinNode:
        node = self.operator.node
        assert isinstance(node, ResponseJoinNode)
        return node

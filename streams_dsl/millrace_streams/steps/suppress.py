"""Suppression of a table's changes, until window close or a time."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.graph import SuppressNode
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State
from millrace_streams.stores import StoreSpec, TimeBuffer
from millrace_streams.stores.base import EntryForm
from millrace_streams.stores.entries import Held


@dataclass(frozen=True)
class SuppressStep:
    """Step of a ``SuppressNode``.

    Stream time is that of the changes that reach the step. A change is emitted when stream time has reached its time
    (for final results its window's end) plus the wait. A later change of a suppressed key takes the place of the first.
    Changes are emitted in order of that time, then of the key. Deletions are forwarded, but not as final results.

    The old value of a forwarded change is that of the newest change of its key, even if that value was never forwarded.
    Kafka Streams does the same (``InMemoryTimeOrderedKeyValueChangeBuffer``).
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The buffer."""
        node = self._node
        form: EntryForm = "final" if node.final else "held"
        kept_ms = node.wait_ms or 0
        return (
            StoreSpec(name=node.buffer, kind="buffer", layout=self.operator.result, form=form, retention_ms=kept_ms),
        )

    def run(self, inputs: Inputs, state: State) -> Output:
        """Buffer changes, and emit due ones."""
        node, batch, out, released = self._node, inputs.batch, Emitted(), list[int]()
        buffer = state.stores[node.buffer]
        assert isinstance(buffer, TimeBuffer)
        buffer.want_entries(batch.keys)
        rows = zip(batch.keys, batch.values, batch.olds, batch.times, strict=True)
        for turn, (key, value, old, time_ms) in enumerate(rows):
            stream_time_ms = max(buffer.number("stream_time"), time_ms)
            buffer.numbers["stream_time"] = stream_time_ms
            held = buffer.entry(key)
            due = held.due if held is not None else key.end if node.final else time_ms
            buffer.put(key, Held(key, value, time_ms, old, due))
            assert node.wait_ms is not None
            until_ms = stream_time_ms - node.wait_ms
            while (oldest_ms := buffer.oldest_ms(until_ms)) is not None and oldest_ms <= until_ms:
                self._let_go(buffer, turn, inputs, out, released)
            self._limit(buffer, turn, inputs, out, released)
        return inputs.released(out.output(self.operator.result), released)

    def _let_go(self, buffer: TimeBuffer, turn: int, inputs: Inputs, out: Emitted, released: list[int]) -> None:
        key, held = buffer.pop_oldest()
        if held.value is not None or not self._node.final:
            if key != inputs.batch.keys[turn]:  # The change of the turn itself was not held back.
                released.append(len(out.keys))
            out.add(turn, key, held.value, held.timestamp, held.before if self._node.sends_old else None)

    def _limit(self, buffer: TimeBuffer, turn: int, inputs: Inputs, out: Emitted, released: list[int]) -> None:
        node = self._node
        while node.records_max is not None and len(buffer) > node.records_max:
            if node.strict:
                text = f"more than {node.records_max} rows are held back: allow more, or emit_early_when_full()"
                raise inputs.failure(node.name, text, turn)
            self._let_go(buffer, turn, inputs, out, released)

    @property
    def _node(self) -> SuppressNode:
        node = self.operator.node
        assert isinstance(node, SuppressNode)
        return node

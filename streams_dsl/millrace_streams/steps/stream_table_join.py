"""Each record of a stream with the row of a table (or global table) at that moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from millrace_streams.functions import PythonFunction
from millrace_streams.graph import StreamTableJoinNode
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.joins import TableView, VersionsView, keys_of_side
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, typed
from millrace_streams.stores import StoreSpec, TimeBuffer, VersionedStore
from millrace_streams.stores.entries import WaitingForTable

_STREAM: Final = 0


@dataclass(frozen=True)
class StreamTableJoinStep:
    """The step of a ``StreamTableJoinNode``; inputs are the stream and the table's changes.

    Only the stream's records give results, under their own time. One without a value is dropped; one without a key
    is too, but a left join joins it with None (where a global table's selector gives None for a record with a key it is
    dropped, as in Kafka Streams 3.9). A table of versions is asked for the version of the record's time. With
    a grace a record waits until the stream's time has reached its own and that, and records leave in time order.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The buffer of waiting records."""
        node = self._node
        if node.buffer is None:
            return ()
        stream, table = self.operator.inputs
        return (StoreSpec(name=node.buffer, kind="buffer", layout=stream, form="waiting_for_table", other=table),)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Join in turn."""
        node, out = self._node, Emitted()
        stream, table = inputs.batches
        mapped = self._table_keys(inputs)
        buffer = state.stores[node.buffer] if node.buffer is not None else None
        assert buffer is None or isinstance(buffer, TimeBuffer)
        view = self._view(state, {*mapped, *keys_of_side(inputs, 1), *_waiting_keys(buffer)} - {None})
        with inputs.blaming(node.name, node.joiner) as place:
            for place.turn, side, row in inputs.turns():
                if side != _STREAM:
                    view.roll(table.keys[row], table.values[row], table.times[row])
                    continue
                record = (stream.keys[row], stream.values[row], stream.times[row])
                table_key = mapped[row]
                if buffer is not None:
                    _advance(buffer, record[2])
                if record[1] is None or (table_key is None and not self._joins_without_key(record[0])):
                    out.dropped += 1
                elif buffer is None or record[2] + (node.grace_ms or 0) < buffer.number("stream_time"):
                    self._join(place.turn, record, table_key, view, out)
                else:
                    self._hold(buffer, record, table_key)
                    self._release(buffer, place.turn, view, out)
        return typed(node, out.output(self.operator.result))

    def _joins_without_key(self, key: Any) -> bool:
        """Whether a record that has no key in the table is joined with None: in a left join, if it has none at all."""
        return self._node.kind == "left" and key is None

    def _table_keys(self, inputs: Inputs) -> list[Any]:
        """The table's key of each of the stream's records."""
        node, batch = self._node, inputs.batches[_STREAM]
        if node.selector is None:
            return batch.keys
        keys = []
        selector: PythonFunction = node.selector
        with inputs.blaming(node.name, selector):
            for key, value in zip(batch.keys, batch.values, strict=True):
                keys.append(None if value is None else selector.keyed(key, value))
        return keys

    def _view(self, state: State, keys: set[Any]) -> TableView:
        store_name = self.operator.reads[1]
        assert store_name is not None
        store = state.stores[store_name]
        if isinstance(store, VersionedStore):
            return VersionsView.of_store(store, keys)
        return TableView.of(state, store_name, keys)

    def _join(self, turn: int, record: tuple[Any, Any, int], table_key: Any, view: TableView, out: Emitted) -> None:
        key, value, time_ms = record
        row = view.get(table_key, time_ms) if table_key is not None else None
        if row is not None or self._node.kind == "left":
            joined = self._node.joiner.keyed(key, value, row.value if row is not None else None)
            out.add(turn, key, joined, time_ms)

    def _hold(self, buffer: TimeBuffer, record: tuple[Any, Any, int], table_key: Any) -> None:
        number = buffer.number("held") + 1
        buffer.numbers["held"] = number
        buffer.put(number, WaitingForTable(number, *record, table_key))

    def _release(self, buffer: TimeBuffer, turn: int, view: TableView, out: Emitted) -> None:
        """Join the records that have waited long enough."""
        limit_ms = buffer.number("stream_time") - (self._node.grace_ms or 0)
        while (oldest_ms := buffer.oldest_ms()) is not None and oldest_ms <= limit_ms:
            _, waited = buffer.pop_oldest()
            self._join(turn, (waited.key, waited.value, waited.timestamp), waited.table_key, view, out)

    @property
    def _node(self) -> StreamTableJoinNode:
        node = self.operator.node
        assert isinstance(node, StreamTableJoinNode)
        return node


def _advance(buffer: TimeBuffer, time_ms: int) -> None:
    buffer.numbers["stream_time"] = max(buffer.number("stream_time"), time_ms)


def _waiting_keys(buffer: TimeBuffer | None) -> set[Any]:
    return set() if buffer is None else {waiting.table_key for _, waiting in buffer.entries()}

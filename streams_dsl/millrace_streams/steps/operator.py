"""Operators of a plan, bucket state, and the step interface."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from millrace_streams.errors import UserFunctionError
from millrace_streams.frames.cells import are_exact_keys, key_conversion
from millrace_streams.graph import Node
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import Rows
from millrace_streams.steps.expiry import Expiry
from millrace_streams.steps.flow import Flow, Inputs, Output
from millrace_streams.steps.results import MISFITS, check_types
from millrace_streams.steps.store import StateDelta, Store, StoreSpec
from millrace_streams.stores import ObjectStore, SessionStore, VersionedStore, WindowStore
from millrace_streams.stores import StoreSpec as ObjectStoreSpec
from millrace_streams.stores.base import Stored
from millrace_streams.windows import Windowed

AnyStore: TypeAlias = Store | ObjectStore
AnyStoreSpec: TypeAlias = StoreSpec | ObjectStoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Node with all data that its step needs.

    ``inputs`` and ``result`` are the layouts of the node's inputs and output. ``reads`` names for each parent the store
    in which a table's rows can be looked up. ``versioned`` tells which parents are versioned tables, whose changes may
    be out of order.
    """

    node: Node
    inputs: tuple[Layout, ...]
    result: Layout
    reads: tuple[str | None, ...] = ()
    versioned: tuple[bool, ...] = ()

    @property
    def given(self) -> Layout:
        """Layout of the first (or only) input."""
        return self.inputs[0]

    def store_of_rows(self, name: str | None) -> tuple[AnyStoreSpec, ...]:
        """Return the store of the result's rows by key; none without a name."""
        return () if name is None else (ObjectStoreSpec(name=name, kind="key_value", layout=self.result),)


Lookup: TypeAlias = Callable[[AnyStore, Iterable[Any]], dict[Any, Stored]]
"""Look-up of a table's rows by key, for stores that hold accumulators."""


@dataclass(slots=True)
class State:
    """State of one bucket: stores by name, and the running processors.

    ``pending`` are changes of column stores, which are applied after all steps. ``expiries`` are those of the windowed
    stores that joins read, for the current batch. ``unsent`` are the changes of such a store that its operator does not
    send on, because its results wait until the window closes. Kafka Streams' joins read the store, and so find them.
    """

    stores: dict[str, AnyStore]
    pending: dict[str, StateDelta] = field(default_factory=dict)
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    running: dict[str, Any] = field(default_factory=dict)
    expiries: dict[str, Expiry] = field(default_factory=dict)
    unsent: dict[str, Flow] = field(default_factory=dict)

    def rows_before(self, store_name: str, keys: Iterable[Any]) -> dict[Any, Stored]:
        """Return the rows of a table's store for these keys, as of the start of the batch."""
        store = self.stores[store_name]
        if store_name in self.lookups:
            return self.lookups[store_name](store, keys)
        assert not isinstance(store, Store)
        return entries_before(store, keys)


def entries_before(store: ObjectStore, keys: Iterable[Any]) -> dict[Any, Stored]:
    """Return the entries of a store for these keys, as of the start of the batch."""
    wanted = list(keys)
    store.want_entries([_identity(store, key) for key in wanted])
    found = {key: _stored(store, key) for key in wanted}
    return {key: stored for key, stored in found.items() if stored is not None}


def _identity(store: ObjectStore, key: Any) -> Hashable:
    """Return the identity of the entry with a table's row."""
    if isinstance(store, WindowStore):
        assert isinstance(key, Windowed)
        return (key.key, key.start)
    identity: Hashable = key
    return identity


def _stored(store: ObjectStore, key: Any) -> Stored | None:
    entry: Any = store.before(_identity(store, key))
    if entry is None:
        return None
    if isinstance(store, VersionedStore):
        newest: Stored | None = entry.newest()
        return newest
    found: Stored = Stored(entry, key.end) if isinstance(store, SessionStore) else entry
    return found


class Step(Protocol):
    """Running operator.

    A step is created once per worker and used for all its batches and buckets.
    """

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """Stores of the step."""
        ...

    def run(self, inputs: Inputs, state: State) -> Output:
        """Process a batch of one bucket, and update the bucket's stores."""
        ...


@dataclass(frozen=True)
class StatelessStep:
    """Base of stateless steps."""

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """No stores."""
        return ()


def keys_as_columns(
    inputs: Inputs, node: str, layout: Layout, keys: list[Any], turns: Sequence[int] | Rows
) -> list[Any]:
    """Return the keys from a user function as the key columns of ``layout`` give them back; they are hashable.

    Raises ``UserFunctionError`` naming the node and the position of the record of a key that does not fit.
    """
    fields = [layout.schema.field(name) for name in layout.key]
    if len(fields) == 1 and not layout.windowed and are_exact_keys(fields[0], keys):
        return keys
    convert, found = key_conversion(layout), []
    for turn, key in zip(turns, keys, strict=True):
        try:
            found.append(None if key is None else convert(key))
        except MISFITS as error:
            wanted, why = ", ".join(str(field.type) for field in fields), str(error).partition("\n")[0]
            text = f"the function's key {key!r} does not fit {wanted}: {why}: give its type, key=..."
            raise inputs.failure(node, text, turn) from error
    return found


def typed(node: Node, output: Output, inputs: Inputs) -> Output:
    """Return a user function's results as the layout's columns give them back.

    Raises ``UserFunctionError`` naming the node and the record's position if they do not fit.
    """
    checked(node, output, inputs)
    return replace(output, batch=output.batch.canonical())


def checked(node: Node, output: Output, inputs: Inputs) -> Output:
    """Return results that are as their columns give them back, if they fit; raises as ``typed`` does."""

    def failure(text: str, row: int | None) -> UserFunctionError:
        turn = None if row is None else output.turn_of(row)
        if turn is None:
            return UserFunctionError(f"{node.name}: {text}", node=node.name)
        return inputs.failure(node.name, text, turn)

    check_types(node.name, output.batch, failure=failure)
    return output

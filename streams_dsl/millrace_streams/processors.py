"""The processor API: what a user's own processor is given, and the stores that it may ask for.

A processor is any object with ``process(record)``; ``init(context)``, if it has that, is called first, once per task.
What it must remember lies in stores: its own attributes are lost when a task moves.

    >>> class Deduplicate:
    ...     def init(self, context):
    ...         self.context, self.seen = context, context.store("seen")
    ...     def process(self, record):
    ...         if self.seen.put_if_absent(record.key, record.value) is None:
    ...             self.context.forward(record)
    >>> store = key_value_store("seen", key="string", value="long")
    >>> builder.stream("in").process(Deduplicate, stores=[store])    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from millrace.records import Headers
from millrace_streams.errors import TopologyError
from millrace_streams.serdes import RowSerde, Serde, scalar_serde, serde_of
from millrace_streams.stores.base import StoreKind
from millrace_streams.windows import Duration, milliseconds

PunctuationType: TypeAlias = Literal["stream_time", "wall_clock_time"]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a processor sees it; ``timestamp`` in ms."""

    key: Any
    value: Any
    timestamp: int

    def with_key(self, key: Any) -> Record:
        """The same under another key."""
        return replace(self, key=key)

    def with_value(self, value: Any) -> Record:
        """The same with another value."""
        return replace(self, value=value)

    def with_timestamp(self, timestamp: int) -> Record:
        """The same at another time."""
        return replace(self, timestamp=timestamp)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where the record in hand was read."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RecordContext:
    """Where the record in hand was read, its time in ms and its headers, as Kafka's ``RecordContext``.

    ``topic`` is None, ``partition`` and ``offset`` are -1 if the wall clock caused the record.
    """

    topic: str | None
    partition: int
    offset: int
    timestamp: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class TaskId:
    """A task: the number of its sub-topology, and its partition (behind a move its bucket). As text ``0_3``."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        """Kafka's form."""
        return f"{self.subtopology}_{self.partition}"


FIRST_TASK: Final = TaskId(0, 0)


class Milliseconds(int):
    """A time in ms that may also be called, because Kafka's accessor of that name is a method."""

    def __call__(self) -> int:
        """The time."""
        return int(self)


class Cancellable(Protocol):
    """A punctuation that was scheduled."""

    def cancel(self) -> None:
        """End it."""
        ...


class ProcessorContext(Protocol):
    """What a processor can do beside computing."""

    @property
    def stream_time_ms(self) -> int:
        """The largest timestamp that the task has seen; -1 before the first record."""
        ...

    @property
    def current_stream_time_ms(self) -> Milliseconds:
        """``stream_time_ms`` under Kafka's name."""
        ...

    @property
    def wall_clock_ms(self) -> int:
        """The time of day in ms since 1970."""
        ...

    @property
    def current_system_time_ms(self) -> Milliseconds:
        """``wall_clock_ms`` under Kafka's name."""
        ...

    @property
    def application_id(self) -> str:
        """Which application runs: the id of the Spark query, in a batch that of the Spark application."""
        ...

    @property
    def task_id(self) -> TaskId:
        """The task that runs the processor."""
        ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Where the record in hand was read; None in a punctuation."""
        ...

    @property
    def headers(self) -> Headers:
        """Names and values of the headers of the record in hand; what is made of it keeps them. Else none."""
        ...

    def forward(
        self, key: Any, value: Any = None, timestamp: int | None = None, *, child_name: str | None = None
    ) -> None:
        """Give a record (a ``Record``, or its parts) to what comes after; without a time, that of the one in hand.

        With ``child_name`` only the node of that name takes it. Raises ``TopologyError`` if none of the processor's
        children is named so. In ``process_values`` the key must be that of the record in hand.
        """
        ...

    def forward_value(self, value: Any, timestamp: int | None = None, *, child_name: str | None = None) -> None:
        """As ``forward``, under the key of the record in hand."""
        ...

    def store(self, name: str) -> Any:
        """A connected store, as a view with ``get`` and ``put``. Raises ``TopologyError`` for one that is not."""
        ...

    def get_state_store(self, name: str) -> Any:
        """``store`` under Kafka's name."""
        ...

    def commit(self) -> None:
        """Ask for a commit. Each micro-batch is committed as a whole, so the request changes nothing."""
        ...

    def schedule(self, interval_ms: int, kind: PunctuationType, callback: Callable[[int], None]) -> Cancellable:
        """Call ``callback`` with the time whenever stream time or the wall clock has gone on by the interval.

        By stream time it is called at the first record, then after the record that passes the next multiple of the
        interval; by the wall clock first one interval from now, on Spark with the next records of the task. A jump over
        several gives one call.
        """
        ...


class ContextualProcessor:
    """A base of processors that keeps the context for them, as Kafka's ``ContextualProcessor``."""

    context: ProcessorContext

    def init(self, context: ProcessorContext) -> None:
        """Keep the context; a processor with an ``init`` of its own calls this one first."""
        self.context = context


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBuilder:
    """A store of a user's processors. Made by ``key_value_store`` and its kind."""

    name: str
    kind: StoreKind
    key: Serde
    value: Serde | RowSerde
    retention_ms: int = 0


def key_value_store(name: str, *, key: Any, value: Any) -> StoreBuilder:
    """A value per key: ``get``, ``put``, ``put_if_absent``, ``delete``, ``range``, ``all``."""
    return _builder(name, "key_value", key, value)


def window_store(name: str, *, key: Any, value: Any, retention: Duration) -> StoreBuilder:
    """A value per key and window start, kept for ``retention``: ``put(key, value, start)``, ``fetch``, ``all``."""
    return _builder(name, "window", key, value, _positive(name, retention))


def session_store(name: str, *, key: Any, value: Any, retention: Duration) -> StoreBuilder:
    """A value per key and session, kept for ``retention``: ``put``, ``remove``, ``fetch``, ``find_sessions``."""
    return _builder(name, "session", key, value, _positive(name, retention))


def versioned_store(name: str, *, key: Any, value: Any, history: Duration) -> StoreBuilder:
    """The versions of a value per key, as far back as ``history``: ``put``, ``get(key, as_of=...)``, ``delete``."""
    return _builder(name, "versioned", key, value, _positive(name, history))


def _builder(name: str, kind: StoreKind, key: Any, value: Any, retention_ms: int = 0) -> StoreBuilder:
    if not name:
        raise TopologyError("a store needs a name")
    where = f"store {name}"
    return StoreBuilder(
        name=name, kind=kind, key=scalar_serde(key, where), value=serde_of(value, where), retention_ms=retention_ms
    )


def _positive(name: str, duration: Duration) -> int:
    length_ms = milliseconds(duration)
    if length_ms <= 0:
        raise TopologyError(f"store {name}: a retention of {length_ms} ms keeps nothing: it must be positive")
    return length_ms

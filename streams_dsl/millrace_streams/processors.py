"""Processor API: the context of a user's processor, and its stores.

A processor is any object with ``process(record)``. Its optional ``init(context)`` is called first, once per task. State
must be in stores, because attributes are lost when a task moves.

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
from operator import index
from typing import Any, Final, Literal, Protocol, TypeAlias

from millrace.records import Headers
from millrace_streams.errors import TopologyError
from millrace_streams.serdes import RowSerde, Serde, scalar_serde, serde_of
from millrace_streams.stores.base import StoreKind
from millrace_streams.windows import FOREVER_MS, Duration, milliseconds

PunctuationType: TypeAlias = Literal["stream_time", "wall_clock_time"]


def check_timestamp(timestamp: int) -> None:
    """Raise ``ValueError`` for a record's negative timestamp, as Kafka's ``Record`` does, and for more than 64 bits.

    Raises ``TypeError`` for a timestamp that is no whole number.
    """
    if not 0 <= index(timestamp) <= FOREVER_MS:
        raise ValueError(
            f"a record's timestamp may not be negative or exceed 64 bits, but is {timestamp}: give ms since 1970"
        )


@dataclass(frozen=True, slots=True)
class Record:
    """Record in a processor (Kafka's ``Record``); ``timestamp`` is in ms.

    Raises ``ValueError`` or ``TypeError`` for an invalid timestamp.
    """

    key: Any
    value: Any
    timestamp: int

    def __post_init__(self) -> None:
        """Check the timestamp."""
        check_timestamp(self.timestamp)

    def with_key(self, key: Any) -> Record:
        """Return a copy with another key."""
        return replace(self, key=key)

    def with_value(self, value: Any) -> Record:
        """Return a copy with another value."""
        return replace(self, value=value)

    def with_timestamp(self, timestamp: int) -> Record:
        """Return a copy with another timestamp."""
        return replace(self, timestamp=timestamp)


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Topic, partition and offset of the current record (Kafka's ``RecordMetadata``)."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RecordContext:
    """Position, timestamp in ms and headers of the current record (Kafka's ``RecordContext``).

    ``topic`` is None, and ``partition`` and ``offset`` are -1, if a wall-clock punctuation created the record.
    """

    topic: str | None
    partition: int
    offset: int
    timestamp: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class TaskId:
    """Task id (Kafka's ``TaskId``), as text ``0_3``.

    The id has the number of the sub-topology and the partition, or after a repartition the bucket.
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        """Return Kafka's form."""
        return f"{self.subtopology}_{self.partition}"


FIRST_TASK: Final = TaskId(0, 0)


class Milliseconds(int):
    """Time in ms that is also callable.

    The time is callable because Kafka's accessor of that name is a method.
    """

    def __call__(self) -> int:
        """Return the time."""
        return int(self)


class Cancellable(Protocol):
    """Scheduled punctuation (Kafka's ``Cancellable``)."""

    def cancel(self) -> None:
        """Cancel the punctuation."""
        ...


class ProcessorContext(Protocol):
    """Context of a processor (Kafka's ``ProcessorContext``)."""

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
        """The current time in ms since 1970."""
        ...

    @property
    def current_system_time_ms(self) -> Milliseconds:
        """``wall_clock_ms`` under Kafka's name."""
        ...

    @property
    def application_id(self) -> str:
        """Id of the application: the id of the Spark query, or in a batch of the Spark application."""
        ...

    @property
    def task_id(self) -> TaskId:
        """The task that runs the processor."""
        ...

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Position of the current record; None in a punctuation."""
        ...

    @property
    def headers(self) -> Headers:
        """Names and values of the current record's headers, which forwarded records keep; empty in a punctuation."""
        ...

    def forward(
        self, key: Any, value: Any = None, timestamp: int | None = None, *, child_name: str | None = None
    ) -> None:
        """Forward a record (a ``Record``, or its parts) to the children. The default timestamp is that of the current
        record.

        With ``child_name`` only the node of that name receives it. Raises ``TopologyError`` if the processor has no
        such child, and in ``init``, because no record has come yet. In ``process_values`` the key must be that of the
        current record.
        """
        ...

    def forward_value(self, value: Any, timestamp: int | None = None, *, child_name: str | None = None) -> None:
        """Forward a value under the key of the current record, see ``forward``."""
        ...

    def store(self, name: str) -> Any:
        """Return a connected store, with ``get`` and ``put``. Raises ``TopologyError`` for a store that is not
        connected.
        """
        ...

    def get_state_store(self, name: str) -> Any:
        """``store`` under Kafka's name."""
        ...

    def commit(self) -> None:
        """Request a commit. The request has no effect, because each micro-batch is committed as a whole."""
        ...

    def schedule(self, interval_ms: Duration, kind: PunctuationType, callback: Callable[[int], None]) -> Cancellable:
        """Call ``callback`` with the time whenever stream time or the wall clock has advanced by the interval.

        The interval is a ``timedelta`` or in ms.

        For stream time the first call is at the first record. Each later call follows the record that passes the next
        multiple of the interval. For the wall clock the first call is one interval from now; on Spark it waits for the
        next records of the task. A jump over several intervals gives one call.
        """
        ...


class ContextualProcessor:
    """Base class of processors that stores the context (Kafka's ``ContextualProcessor``)."""

    context: ProcessorContext

    def init(self, context: ProcessorContext) -> None:
        """Store the context. A subclass with its own ``init`` calls this one first."""
        self.context = context


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBuilder:
    """Definition of a store for processors. Made by ``key_value_store`` and similar functions."""

    name: str
    kind: StoreKind
    key: Serde
    value: Serde | RowSerde
    retention_ms: int = 0


def key_value_store(name: str, *, key: Any, value: Any) -> StoreBuilder:
    """Define a store of a value per key: ``get``, ``put``, ``put_all``, ``put_if_absent``, ``delete``, ``range``,
    ``all``, ``reverse_range``, ``reverse_all``, ``prefix_scan``, ``approximate_num_entries``.
    """
    return _builder(name, "key_value", key, value)


def window_store(name: str, *, key: Any, value: Any, retention: Duration) -> StoreBuilder:
    """Define a store of a value per key and window start, kept for ``retention``: ``put(key, value, start)``,
    ``fetch``, ``fetch_all``, ``all``, and each of these with ``backward_``.
    """
    return _builder(name, "window", key, value, _positive(name, retention))


def session_store(name: str, *, key: Any, value: Any, retention: Duration) -> StoreBuilder:
    """Define a store of a value per key and session, kept for ``retention``: ``put``, ``remove``, ``fetch``,
    ``find_sessions``, ``fetch_session``, and ``fetch`` and ``find_sessions`` with ``backward_``.
    """
    return _builder(name, "session", key, value, _positive(name, retention))


def versioned_store(name: str, *, key: Any, value: Any, history: Duration) -> StoreBuilder:
    """Define a store of the versions of a value per key within ``history``: ``put``, ``get(key, as_of=...)``,
    ``delete``.
    """
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

"""How a table's changes are held back: ``Suppressed``, as in Kafka Streams (KIP-328)."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.errors import TopologyError
from millrace_streams.windows import Duration, milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferConfig:
    """How much may be held back. ``strict``: more is an error; else the oldest goes out early."""

    records_max: int | None = None
    strict: bool = True

    @classmethod
    def unbounded(cls) -> BufferConfig:
        """As much as there is."""
        return cls()

    @classmethod
    def max_records(cls, count: int) -> BufferConfig:
        """At most ``count`` rows; the oldest goes out early when there are more. 0 holds nothing back."""
        if count < 0:
            raise TopologyError(f"a buffer of {count} records: the limit must not be negative")
        return cls(records_max=count, strict=False)

    def shut_down_when_full(self) -> BufferConfig:
        """The same, but more is an error."""
        return BufferConfig(records_max=self.records_max, strict=True)

    def emit_early_when_full(self) -> BufferConfig:
        """The same, but the oldest goes out early."""
        return BufferConfig(records_max=self.records_max, strict=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """What ``suppress`` does: made by ``until_window_closes`` or ``until_time_limit``."""

    final: bool
    wait_ms: int | None
    buffer: BufferConfig

    @classmethod
    def until_window_closes(cls, buffer: BufferConfig | None = None) -> Suppressed:
        """One final result per window, when stream time has passed its end and grace.

        Raises ``TopologyError`` for a buffer that lets results out early: they would not be final.
        """
        buffer = buffer or BufferConfig.unbounded()
        if buffer.records_max is not None and not buffer.strict:
            raise TopologyError(
                "until_window_closes needs a strict buffer, or results would not be final: add shut_down_when_full()"
            )
        return cls(final=True, wait_ms=None, buffer=buffer)

    @classmethod
    def until_time_limit(cls, limit: Duration, buffer: BufferConfig | None = None) -> Suppressed:
        """The last change of a key, ``limit`` after the first one that was held back (by stream time)."""
        return cls(final=False, wait_ms=milliseconds(limit), buffer=buffer or BufferConfig.unbounded())

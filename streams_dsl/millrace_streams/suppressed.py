"""Suppression of a table's changes (Kafka Streams' ``Suppressed``, KIP-328)."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_streams.errors import TopologyError
from millrace_streams.windows import Duration, milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferConfig:
    """Size limit of the buffer. With ``strict`` an overflow is an error; otherwise the oldest row is emitted early."""

    records_max: int | None = None
    strict: bool = True

    @classmethod
    def unbounded(cls) -> BufferConfig:
        """Return a buffer without a limit."""
        return cls()

    @classmethod
    def max_records(cls, count: int) -> BufferConfig:
        """Return a buffer of at most ``count`` rows, which emits the oldest early when it overflows. 0 buffers
        nothing.
        """
        if count < 0:
            raise TopologyError(f"a buffer of {count} records: the limit must not be negative")
        return cls(records_max=count, strict=False)

    def shut_down_when_full(self) -> BufferConfig:
        """Return the same buffer, in which an overflow is an error."""
        return BufferConfig(records_max=self.records_max, strict=True)

    def emit_early_when_full(self) -> BufferConfig:
        """Return the same buffer, which emits the oldest row early when it overflows."""
        return BufferConfig(records_max=self.records_max, strict=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """Argument of ``suppress``, made by ``until_window_closes`` or ``until_time_limit``."""

    final: bool
    wait_ms: int | None
    buffer: BufferConfig

    @classmethod
    def until_window_closes(cls, buffer: BufferConfig | None = None) -> Suppressed:
        """Emit one final result per window, when stream time has passed its end and grace.

        Raises ``TopologyError`` for a buffer that emits early, because its results would not be final.
        """
        buffer = buffer or BufferConfig.unbounded()
        if buffer.records_max is not None and not buffer.strict:
            raise TopologyError(
                "until_window_closes needs a strict buffer, because results would not be final otherwise: add "
                "shut_down_when_full()"
            )
        return cls(final=True, wait_ms=None, buffer=buffer)

    @classmethod
    def until_time_limit(cls, limit: Duration, buffer: BufferConfig | None = None) -> Suppressed:
        """Emit the last change of a key, ``limit`` after the first suppressed one (in stream time)."""
        return cls(final=False, wait_ms=milliseconds(limit), buffer=buffer or BufferConfig.unbounded())

"""Broker options that are the defaults of topic options."""

from __future__ import annotations

import re
from typing import Any, Final

from millrace.errors import InvalidConfigError

_INTEGER: Final = re.compile("[+-]?[0-9]{1,19}")
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS

TOPIC_DEFAULTS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1),),
    "flush.before.ack": (("log.flush.before.ack", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    "retention.bytes": (("log.retention.bytes", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "preallocate": (("log.preallocate", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
    "schema.compatibility": (("schema.compatibility", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
}
"""Broker options of each topic option, in order of precedence, with the factor to the topic option's unit."""


def take_topic_defaults(values: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Remove the topic defaults from ``values``. Return the broker's option and value of each topic option."""
    taken: dict[str, tuple[str, Any]] = {}
    for topic_name, names in TOPIC_DEFAULTS.items():
        for name, factor in reversed(names):
            if name in values:
                taken[topic_name] = (name, _scaled(name, values.pop(name), factor))
    return taken


def _scaled(name: str, value: Any, factor: int) -> Any:
    if factor == 1:
        return value
    if not _INTEGER.fullmatch(str(value).strip()):
        raise InvalidConfigError(f"{name}={value!r}: expected an integer")
    number = int(value)
    return number * factor if number >= 0 else number

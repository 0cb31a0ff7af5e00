"""Kafka's names of partition directories and of the files in them."""

from __future__ import annotations

import re
from typing import Final

from millrace.errors import InvalidTopicError

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
"""Suffixes of the files of one segment, deleted with it. Snapshots belong to the partition's producer state."""

DELETED: Final = ".deleted"
"""Suffix of files that are no longer part of the log and wait for removal."""
CLEANED: Final = ".cleaned"
"""Suffix of an incomplete replacement file; discarded unless it was finished and renamed."""
SWAP: Final = ".swap"
"""Suffix of a finished replacement whose predecessors may still exist."""

DELETED_DIRECTORY: Final = "-delete"
"""Suffix of a partition directory that waits for removal, or whose creation was never finished."""

FUTURE_DIRECTORY: Final = "-future"
"""Suffix of an unfinished copy of a partition directory, on its way to another log directory (KIP-113)."""
MOVED_DIRECTORY: Final = "-moved"
"""Suffix of a finished copy, which takes the place of the old partition directory."""

_OFFSET_DIGITS: Final = 20
_NAME_BYTES_MAX: Final = 255
_SEGMENT_FILE: Final = re.compile(r"^(\d{20})(\.[a-z]+)$")
_UNDER_WAY: Final = re.compile(r"^(?P<name>.+)\.[0-9a-f]{32}(?P<suffix>-future|-moved)$")
_PARTITION_DIRECTORY: Final = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})$")


def segment_file_name(base_offset: int, suffix: str) -> str:
    """Name a segment's file: its base offset in 20 digits, and ``.log``, ``.index``, ``.timeindex`` and so on."""
    return f"{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_segment_file_name(name: str) -> tuple[int, str] | None:
    """Parse a segment file's name into (base offset, suffix); returns None for any other name."""
    match = _SEGMENT_FILE.match(name)
    return (int(match[1]), match[2]) if match else None


def partition_directory_name(topic: str, partition: int) -> str:
    """Name the directory of a partition, ``orders-3``."""
    return f"{topic}-{partition}"


def parse_partition_directory_name(name: str) -> tuple[str, int]:
    """Parse a partition directory's name into (topic, partition).

    Raises ``InvalidTopicError`` for a name that is not ``<topic>-<partition>``.
    """
    match = _PARTITION_DIRECTORY.match(name)
    if match is None or match["topic"] in (".", ".."):
        raise InvalidTopicError(f"{name!r} is not the name of a partition directory, which is <topic>-<partition>")
    return match["topic"], int(match["partition"])


def directory_name_under_way(topic: str, partition: int, unique: str, suffix: str) -> str:
    """Name a copy of a partition directory: ``orders-3.<unique>-future``. ``unique`` has 32 hexadecimal digits.

    Raises ``InvalidTopicError`` if the topic's name is too long for the name of such a directory.
    """
    name = f"{partition_directory_name(topic, partition)}.{unique}{suffix}"
    if len(name) > _NAME_BYTES_MAX:
        raise InvalidTopicError(
            f"{topic}-{partition} cannot be moved to another log directory: its name is {len(name) - _NAME_BYTES_MAX} "
            "characters too long for the name of the copy"
        )
    return name


def parse_directory_name_under_way(name: str) -> tuple[str, int, str] | None:
    """Parse the name of a copy of a partition directory into (topic, partition, suffix); returns None for others."""
    match = _UNDER_WAY.match(name)
    if match is None or _PARTITION_DIRECTORY.match(match["name"]) is None:
        return None
    return *parse_partition_directory_name(match["name"]), match["suffix"]


def deleted_directory_name(topic: str, partition: int, unique: str) -> str:
    """Name the directory of a deleted or not yet created partition: ``orders-3.<unique>-delete``.

    The topic is cut if the name would otherwise be longer than a file name may be.
    """
    tail = f"-{partition}.{unique}{DELETED_DIRECTORY}"
    return topic[: _NAME_BYTES_MAX - len(tail)] + tail

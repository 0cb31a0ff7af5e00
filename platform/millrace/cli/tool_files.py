"""Files in the JSON of Kafka's tools.

Values are not converted. A partition of ``0.7``, ``true`` or ``"0"`` is refused, because it may mean another one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.clients import TopicPartition


def file_text(path: Path) -> str:
    """Read a file. Raises ``UsageError``."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {path}: it is not UTF-8") from None


def json_object(text: str, source: object = "the file") -> dict[str, Any]:
    """Parse an object of version 1. Raises ``UsageError``, which names the source."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{source} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{source} is not a JSON object: expected {{...}}")
    if value.get("version", 1) != 1:
        raise UsageError(f"{source} has version {value['version']}, which is not supported: expected 1")
    return value


def partition_of(entry: Any) -> TopicPartition:
    """Return the partition that an entry names. Raises ``KeyError``, ``TypeError``."""
    from millrace.clients import TopicPartition

    return TopicPartition(text_of(entry["topic"]), number_of(entry["partition"]))


def number_of(value: Any) -> int:
    """Return an integer. Raises ``TypeError`` for any other value."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def text_of(value: Any) -> str:
    """Return a text. Raises ``TypeError`` for any other value."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def list_of(value: Any) -> list[Any]:
    """Return a list. Raises ``TypeError`` for any other value, such as a text, which has elements too."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value

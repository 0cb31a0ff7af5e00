"""Keys of the coordinators' records.

A key begins with the type of its record, an i16. In Kafka's definitions this is the API key of the key's message, and
the content after it has version 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from millrace.kafka_protocol import Message, read_version

K = TypeVar("K", bound=Message)


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """Key of a record of an unknown type. Kafka calls the type a version."""

    version: int


def read_key(data: bytes, *known: type[K]) -> K | UnknownKey:
    """Read a key that is one of these messages. Raises ``InvalidRecordError`` if it is damaged."""
    record_type = read_version(data)
    for cls in known:
        if record_type == cls.API_KEY:
            return cls.decode_from(data, 0, 2)[0]
    return UnknownKey(record_type)


def write_key(key: Message) -> bytes:
    """Write a key. Raises ``InvalidFieldError``."""
    return key.API_KEY.to_bytes(2, "big") + key.encode(0)

"""Decoders of opaque keys and values: plain types, coordinator records, own functions.

They serve ``--key-decoder-class``, ``--value-decoder-class``, ``--offsets-decoder``, ``--transaction-log-decoder`` and
``--share-group-state-decoder``.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final
from uuid import UUID

from millrace.consumer_protocol import PROTOCOL_TYPE
from millrace.coordinator_records import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    ExternalCommitKey,
    ExternalCommitValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
    UnknownKey,
    read_assignment,
    read_offsets_key,
    read_share_state_key,
    read_subscription,
    read_transaction_key,
    read_versioned,
)
from millrace.errors import MillraceError, UsageError
from millrace.ids import id_text
from millrace.kafka_protocol import Message, read_version

Decode = Callable[[bytes], Any]
"""Converts bytes that are not null to a value for JSON and tables."""


@dataclass(frozen=True, slots=True)
class RecordDecoder:
    """Decoder of a record's key and value. ``value`` also gets the key, which may determine the value's type."""

    key: Decode
    value: Callable[[bytes | None, bytes], Any]

    def content(self, key: bytes | None, value: bytes | None) -> dict[str, Any]:
        """Return the decoded key and value. Raises ``MillraceError`` if they cannot be decoded."""
        return {
            "key": None if key is None else self.key(key),
            "value": None if value is None else self.value(key, value),
        }


# --- plain types ---------------------------------------------------------------------------------------------


def _number(layout: str) -> Decode:
    wanted = struct.Struct(layout)

    def decode(data: bytes) -> Any:
        if len(data) != wanted.size:
            raise UsageError(f"expected a number of {wanted.size} bytes, found {len(data)}: choose another decoder")
        return wanted.unpack(data)[0]

    return decode


def _uuid(data: bytes) -> str:
    if len(data) != 16:
        raise UsageError(f"expected a UUID of 16 bytes, found {len(data)}: choose another decoder")
    return id_text(UUID(bytes=data))


_PLAIN: Final[dict[str, Decode]] = {
    "string": lambda data: data.decode("utf-8", "replace"),
    "bytes": lambda data: data,
    "default": lambda data: data,
    "bytearray": lambda data: data,
    "base64": lambda data: base64.b64encode(data).decode(),
    "hex": bytes.hex,
    "short": _number(">h"),
    "integer": _number(">i"),
    "long": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
    "uuid": _uuid,
}


def decoder_of(name: str) -> Decode:
    """Find a decoder by name: a plain type, Kafka's class for it, or a user's ``module:function``.

    Raises ``UsageError``.
    """
    module, colon, function = name.partition(":")
    if colon:
        try:
            found: Decode = getattr(import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"decoder {name!r}: {error}") from None
        return found
    short = name.rpartition(".")[2].lower().removesuffix("decoder").removesuffix("deserializer")
    if short not in _PLAIN:
        raise UsageError(f"unknown decoder {name!r}: expected {', '.join(_PLAIN)}, or module:function")
    return _PLAIN[short]


def plain_decoder(key: str | None, value: str | None) -> RecordDecoder:
    """Return a decoder of keys and values by names. A part without a name stays bytes."""
    decode_value = decoder_of(value or "bytes")
    return RecordDecoder(decoder_of(key or "bytes"), lambda _, data: decode_value(data))


# --- the coordinators' records ---------------------------------------------------------------------------------


def _keyed(version: int, message: Message | UnknownKey) -> dict[str, Any]:
    data = "unknown" if isinstance(message, UnknownKey) else message.to_json(0)
    return {"type": str(version), "data": data}


def _valued(version: int, data: dict[str, Any]) -> dict[str, Any]:
    return {"version": str(version), "data": data}


def _offsets_key(data: bytes) -> dict[str, Any]:
    return _keyed(read_version(data), read_offsets_key(data))


def _offsets_value(key: bytes | None, data: bytes) -> Any:
    kind = None if key is None else read_offsets_key(key)
    if isinstance(kind, OffsetCommitKey):
        version, offset = read_versioned(OffsetCommitValue, data)
        return _valued(version, offset.to_json(version))
    if isinstance(kind, GroupMetadataKey):
        version, group = read_versioned(GroupMetadataValue, data)
        return _valued(version, _group(version, group))
    return data


def _group(version: int, group: GroupMetadataValue) -> dict[str, Any]:
    fields = group.to_json(version)
    if group.protocol_type == PROTOCOL_TYPE:
        for shown, member in zip(fields["members"], group.members, strict=True):
            for name, data in (("subscription", member.subscription), ("assignment", member.assignment)):
                if data:
                    read = read_subscription if name == "subscription" else read_assignment
                    known, message = read(data)
                    shown[name] = message.to_json(known)
    return fields


def _transaction_key(data: bytes) -> dict[str, Any]:
    return _keyed(read_version(data), read_transaction_key(data))


def _transaction_value(key: bytes | None, data: bytes) -> Any:
    kind = None if key is None else read_transaction_key(key)
    if isinstance(kind, ExternalCommitKey):
        version, commit = read_versioned(ExternalCommitValue, data)
        return _valued(version, commit.to_json(version))
    if not isinstance(kind, TransactionLogKey):
        return data
    version, value = read_versioned(TransactionLogValue, data)
    shown = _valued(version, value.to_json(version))
    try:
        shown["state"] = TransactionState(value.transaction_status).kafka_name
    except ValueError:
        shown["state"] = f"unknown ({value.transaction_status})"
    return shown


def _share_key(data: bytes) -> dict[str, Any]:
    return _keyed(read_version(data), read_share_state_key(data))


def _share_value(key: bytes | None, data: bytes) -> Any:
    kind = None if key is None else read_share_state_key(key)
    if not isinstance(kind, ShareSnapshotKey | ShareUpdateKey):
        return data
    cls: type[Message] = ShareSnapshotValue if isinstance(kind, ShareSnapshotKey) else ShareUpdateValue
    version, value = read_versioned(cls, data)
    return _valued(version, value.to_json(version))


OFFSETS: Final = RecordDecoder(_offsets_key, _offsets_value)
"""Records of ``__consumer_offsets``, in the JSON of Kafka's own tool."""
TRANSACTIONS: Final = RecordDecoder(_transaction_key, _transaction_value)
"""Records of ``__transaction_state``."""
SHARE_STATES: Final = RecordDecoder(_share_key, _share_value)
"""Records of ``__share_group_state``."""
_BY_TOPIC: Final = {OFFSETS_TOPIC: OFFSETS, TRANSACTIONS_TOPIC: TRANSACTIONS, SHARE_STATE_TOPIC: SHARE_STATES}


def decoder_of_topic(topic: str) -> RecordDecoder | None:
    """Return the decoder of an internal topic; None for any other topic."""
    return _BY_TOPIC.get(topic)


def content_of(
    decoder: RecordDecoder | None, key: bytes | None, value: bytes | None
) -> tuple[dict[str, Any], str | None]:
    """Return the decoded key and value. If decoding fails, return the bytes and the reason."""
    plain = {"key": key, "value": value}
    if decoder is None:
        return plain, None
    try:
        return decoder.content(key, value), None
    except (MillraceError, ValueError) as error:
        return plain, error.message if isinstance(error, MillraceError) else str(error)

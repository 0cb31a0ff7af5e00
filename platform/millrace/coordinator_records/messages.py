"""Versioned messages of typed fields, in the encoding of Kafka's generated classes.

A message is a frozen dataclass whose fields are declared with ``of``, in the order of the wire. A field exists in
some versions. In other versions it has its default, and is not written. In *flexible* versions lengths are unsigned
varints, one more than the length (0: null), and every message ends with tagged fields; unknown ones are skipped
(KIP-482). As in Kafka, bytes after a message are ignored.

Strings are UTF-8; invalid bytes become U+FFFD, as in Java.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Self, TypeVar
from uuid import UUID

from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace.ids import id_text

_ALWAYS: Final = 2**15
_VARINT_BYTES_MAX: Final = 5
_UUID_BYTES: Final = 16
_LENGTH_MAX: Final = 2**31 - 1


class Kind(Enum):
    """Type of a field."""

    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    INT32S = "array of int32"
    STRINGS = "array of strings"
    MESSAGES = "array of messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Layout of a field: its versions ``since`` to ``until``, and its ``tag`` if it is a tagged field."""

    kind: Kind
    since: int = 0
    until: int = _ALWAYS
    is_nullable: bool = False
    tag: int | None = None
    element: type[Message] | None = None


def of(
    kind: Kind,
    *,
    since: int = 0,
    until: int = _ALWAYS,
    nullable: bool = False,
    tag: int | None = None,
    element: type[Message] | None = None,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field of a message. ``default`` is its value in versions without it."""
    field = Field(kind=kind, since=since, until=until, is_nullable=nullable, tag=tag, element=element)
    return dataclasses.field(default=default, metadata={"field": field})


_LAYOUTS: Final[dict[type, tuple[tuple[str, Field, Any], ...]]] = {}


def _fields(cls: type[Message]) -> tuple[tuple[str, Field, Any], ...]:
    """Return name, layout and default of each field."""
    layout = _LAYOUTS.get(cls)
    if layout is None:
        layout = tuple((field.name, field.metadata["field"], field.default) for field in dataclasses.fields(cls))
        _LAYOUTS[cls] = layout
    return layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base of all messages. ``VERSION_MAX`` is the newest version, ``FLEXIBLE_SINCE`` the first flexible one."""

    VERSION_MAX: ClassVar[int] = 0
    VERSION_MIN: ClassVar[int] = 0
    FLEXIBLE_SINCE: ClassVar[int] = _ALWAYS

    @classmethod
    def decode(cls, data: bytes, version: int) -> Self:
        """Read a message. Raises ``InvalidRecordError`` if ``data`` is invalid, ``UnsupportedVersionError``."""
        cls.check_version(version)
        return cls._read(_Reader(data, version, is_flexible=version >= cls.FLEXIBLE_SINCE))

    @classmethod
    def check_version(cls, version: int) -> None:
        """Raise ``UnsupportedVersionError`` for an unknown version."""
        if not cls.VERSION_MIN <= version <= cls.VERSION_MAX:
            known = f"{cls.VERSION_MIN} to {cls.VERSION_MAX}"
            raise UnsupportedVersionError(f"{cls.__name__} of version {version}: known are {known}")

    @classmethod
    def _read(cls, reader: _Reader) -> Self:
        values: dict[str, Any] = {}
        tagged: dict[int, tuple[str, Field]] = {}
        for name, field, default in _fields(cls):
            is_there = field.since <= reader.version <= field.until
            if is_there and field.tag is None:
                values[name] = reader.value(field, f"{cls.__name__}.{name}")
            else:
                values[name] = default
                if is_there and field.tag is not None:
                    tagged[field.tag] = (name, field)
        if reader.is_flexible:
            values |= reader.tagged(tagged, cls.__name__)
        return cls(**values)

    def encode(self, version: int) -> bytes:
        """Write a message. Raises ``UnsupportedVersionError``."""
        self.check_version(version)
        writer = _Writer(version, is_flexible=version >= self.FLEXIBLE_SINCE)
        self._write(writer)
        return bytes(writer.data)

    def _write(self, writer: _Writer) -> None:
        tagged: list[tuple[int, Field, Any]] = []
        for name, field, default in _fields(type(self)):
            value = getattr(self, name)
            if not field.since <= writer.version <= field.until:
                continue
            if field.tag is None:
                writer.value(field, value, f"{type(self).__name__}.{name}")
            elif value != default:
                tagged.append((field.tag, field, value))
        if writer.is_flexible:
            writer.tagged(tagged, type(self).__name__)

    def to_json(self, version: int) -> dict[str, Any]:
        """Return the fields of a version under Kafka's names, like its ``JsonConverter``: bytes are base64."""
        return {
            _kafka_name(name): _json_of(getattr(self, name), version)
            for name, field, default in _fields(type(self))
            if field.since <= version <= field.until and (field.tag is None or getattr(self, name) != default)
        }


def _kafka_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _json_of(value: Any, version: int) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return id_text(value)
    if isinstance(value, Message):
        return value.to_json(version)
    if isinstance(value, tuple):
        return [_json_of(item, version) for item in value]
    return value


M = TypeVar("M", bound=Message)


def read_versioned(cls: type[M], data: bytes) -> tuple[int, M]:
    """Read an i16 version and the message after it: (version, message). Raises the errors of ``Message.decode``."""
    version = read_version(data)
    return version, cls.decode(data[2:], version)


def read_version(data: bytes) -> int:
    """Read the i16 version at the start of a record. Raises ``InvalidRecordError``."""
    if len(data) < 2:
        raise InvalidRecordError(f"a record of {len(data)} bytes: it begins with a version of 2")
    return int.from_bytes(data[:2], "big", signed=True)


def write_versioned(message: Message, version: int) -> bytes:
    """Write an i16 version and a message of that version."""
    return version.to_bytes(2, "big", signed=True) + message.encode(version)


class _Reader:
    def __init__(self, data: bytes, version: int, *, is_flexible: bool) -> None:
        self._data = data
        self._at = 0
        self.version = version
        self.is_flexible = is_flexible

    def _take(self, size_bytes: int, what: str) -> bytes:
        end = self._at + size_bytes
        if size_bytes < 0 or end > len(self._data):
            raise InvalidRecordError(f"{what}: {size_bytes} bytes wanted, {len(self._data) - self._at} are left")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _int(self, kind: Kind, what: str) -> int:
        layout = struct.Struct(">" + kind.value)
        value: int = layout.unpack(self._take(layout.size, what))[0]
        return value

    def _varint(self, what: str) -> int:
        value = 0
        for number in range(_VARINT_BYTES_MAX):
            byte = self._take(1, what)[0]
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value
        raise InvalidRecordError(f"{what}: a length of more than {_VARINT_BYTES_MAX} bytes")

    def _length(self, short: Kind, field: Field, what: str) -> int | None:
        length = self._varint(what) - 1 if self.is_flexible else self._int(short, what)
        if length >= 0:
            return length
        if length < -1 or not field.is_nullable:
            raise InvalidRecordError(f"{what} is null")
        return None

    def value(self, field: Field, what: str) -> Any:
        """Read one field."""
        kind = field.kind
        if len(kind.value) == 1:
            return self._int(kind, what)
        if kind is Kind.UUID:
            return UUID(bytes=self._take(_UUID_BYTES, what))
        if kind in (Kind.STRING, Kind.BYTES):
            length = self._length(Kind.INT16 if kind is Kind.STRING else Kind.INT32, field, what)
            taken = None if length is None else self._take(length, what)
            return taken.decode("utf-8", "replace") if kind is Kind.STRING and taken is not None else taken
        count = self._length(Kind.INT32, field, what)
        if count is None:
            return None
        if count > len(self._data) - self._at:
            raise InvalidRecordError(f"{what}: {count} elements in {len(self._data) - self._at} bytes")
        return tuple(self._element(field, what) for _ in range(count))

    def _element(self, field: Field, what: str) -> Any:
        if field.kind is Kind.INT32S:
            return self._int(Kind.INT32, what)
        if field.kind is Kind.STRINGS:
            return self.value(Field(kind=Kind.STRING), what)
        assert field.element is not None
        return field.element._read(self)

    def tagged(self, known: dict[int, tuple[str, Field]], what: str) -> dict[str, Any]:
        """Read the tagged fields, skipping unknown ones."""
        values = {}
        for _ in range(self._varint(what)):
            tag, size_bytes = self._varint(what), self._varint(what)
            end = self._at + size_bytes
            if tag in known:
                name, field = known[tag]
                values[name] = self.value(field, f"{what}.{name}")
            self._take(end - self._at, what)
        return values


class _Writer:
    def __init__(self, version: int, *, is_flexible: bool) -> None:
        self.data = bytearray()
        self.version = version
        self.is_flexible = is_flexible

    def _int(self, kind: Kind, value: int, what: str) -> None:
        try:
            self.data += struct.pack(">" + kind.value, value)
        except struct.error:
            raise InvalidRecordError(f"{what}={value!r} is no {kind.name.lower()}") from None

    def _varint(self, value: int) -> None:
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def _length(self, short: Kind, value: Sequence[Any] | None, field: Field, what: str) -> None:
        if value is None and not field.is_nullable:
            raise InvalidRecordError(f"{what} is null")
        length = -1 if value is None else len(value)
        if self.is_flexible:
            self._varint(length + 1)
        else:
            self._int(short, length, f"{what}'s length")

    def value(self, field: Field, value: Any, what: str) -> None:
        """Write one field."""
        kind = field.kind
        if len(kind.value) == 1:
            self._int(kind, value, what)
        elif kind is Kind.UUID:
            self.data += value.bytes
        elif kind in (Kind.STRING, Kind.BYTES):
            encoded = value.encode() if isinstance(value, str) else value
            self._length(Kind.INT16 if kind is Kind.STRING else Kind.INT32, encoded, field, what)
            self.data += encoded or b""
        else:
            self._length(Kind.INT32, value, field, what)
            for element in value or ():
                self._element(field, element, what)

    def _element(self, field: Field, element: Any, what: str) -> None:
        if field.kind is Kind.INT32S:
            self._int(Kind.INT32, element, what)
        elif field.kind is Kind.STRINGS:
            self.value(Field(kind=Kind.STRING), element, what)
        else:
            element._write(self)

    def tagged(self, fields: Sequence[tuple[int, Field, Any]], what: str) -> None:
        """Write the tagged fields, by tag."""
        self._varint(len(fields))
        for tag, field, value in sorted(fields, key=lambda each: each[0]):
            content = _Writer(self.version, is_flexible=True)
            content.value(field, value, what)
            self._varint(tag)
            self._varint(len(content.data))
            self.data += content.data

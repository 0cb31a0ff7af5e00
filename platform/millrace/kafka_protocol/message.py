"""Base of all messages: frozen by type, compiled by version.

A message class declares its fields with ``of``, in the order of the wire. A type checker treats its instances as
frozen and its constructor as keyword-only. At run time they are plain slotted objects, because a decoder fills them
five times as fast as frozen ones (``docs/design/0041-kafka-messages.md``).

As in Kafka, bytes after a message are ignored. Tagged fields that the definition does not know are kept and written
again. A field that a version lacks is left out if it is ignorable; otherwise it must have its default. Strings are
UTF-8; invalid bytes become U+FFFD. Unlike Kafka, a length of -2 or less is refused, where Kafka reads null.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self, TypeVar, cast, dataclass_transform
from uuid import UUID

from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace.ids import id_text
from millrace.kafka_protocol.constructing import compile_constructor
from millrace.kafka_protocol.fields import Field, Structure, field_of, of, parse_versions
from millrace.kafka_protocol.reading import UNLIMITED, Decoder, compile_decoder
from millrace.kafka_protocol.wire import Buffer, TaggedField
from millrace.kafka_protocol.writing import Encoder, compile_encoder

T = TypeVar("T")
M = TypeVar("M", bound="Message")
_COPIED_BYTES_MAX = 4096
_HIDDEN: Final = frozenset(("auth_bytes", "salt", "salted_password", "hmac"))
"""Fields with passwords and tokens, which ``repr`` hides. It also hides values of options, some of which are secret."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def _slotted(cls: type[T]) -> type[T]:
    return dataclasses.dataclass(slots=True, init=False, repr=False, eq=False)(cls)


@_slotted
class Message(Structure):
    """A message or a structure in one. ``unknown_tagged_fields`` are those of newer definitions, by tag."""

    VERSION_MIN: ClassVar[int] = 0
    VERSION_MAX: ClassVar[int] = -1
    API_KEY: ClassVar[int] = -1
    DECODERS: ClassVar[dict[int, Decoder]]
    ENCODERS: ClassVar[dict[int, Encoder]]

    unknown_tagged_fields: tuple[TaggedField, ...] = ()

    def __init__(self, **fields: Any) -> None:
        """Compile the constructor of the class, which constructs this instance and those that follow."""
        cls: Any = type(self)
        cls.__init__ = compile_constructor(cls)
        cls.__init__(self, **fields)

    def __eq__(self, other: object) -> bool:
        if other is self:  # a default, which most tagged fields have
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._values() == cast(Self, other)._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={self._shown(field)}" for field in self.FIELDS)
        return f"{type(self).__qualname__}({values})"

    def _shown(self, field: Field) -> str:
        value = getattr(self, field.name)
        is_option = field.name == "value" and field.layout.kind == "string"
        return "(hidden)" if value and (is_option or field.name in _HIDDEN) else repr(value)

    def _values(self) -> tuple[Any, ...]:
        return (self.unknown_tagged_fields, *(getattr(self, field.name) for field in self.FIELDS))

    @classmethod
    def decode(cls, data: Buffer, version: int) -> Self:
        """Read a message. Raises ``MalformedMessageError``, ``UnsupportedVersionError``."""
        return cls.decode_from(data, version, 0)[0]

    @classmethod
    def decode_from(cls, data: Buffer, version: int, position: int, elements_max: int = UNLIMITED) -> tuple[Self, int]:
        """Read a message at a position: (message, next position). Records are views of ``data``.

        ``elements_max`` limits the number of its array elements and tagged fields, nested ones included.
        Raises ``MalformedMessageError``, ``UnsupportedVersionError``.
        """
        decoder = cls.DECODERS.get(version)
        if decoder is None:
            cls.check_version(version)
            decoder = cls.DECODERS[version] = compile_decoder(cls, version)
        return decoder.read(data, position, elements_max)

    def encode(self, version: int) -> bytes:
        """Write a message. Raises ``InvalidFieldError``, ``UnsupportedVersionError``."""
        return b"".join(self._parts(version))

    def encode_parts(self, version: int) -> list[Buffer]:
        """Write a message as parts. Large records are parts of their own, and are not copied."""
        written = self._parts(version)
        if max(map(len, written), default=0) <= _COPIED_BYTES_MAX:
            return [b"".join(written)]
        parts: list[Buffer] = []
        small: list[Buffer] = []
        for part in written:
            if len(part) <= _COPIED_BYTES_MAX:
                small.append(part)
                continue
            if small:
                parts.append(b"".join(small))
                small = []
            parts.append(part)
        if small:
            parts.append(b"".join(small))
        return parts

    def _parts(self, version: int) -> list[Buffer]:
        encoder = self.ENCODERS.get(version)
        if encoder is None:
            self.check_version(version)
            encoder = self.ENCODERS[version] = compile_encoder(type(self), version)
        return encoder.write(self)

    @classmethod
    def check_version(cls, version: int) -> None:
        """Raise ``UnsupportedVersionError`` for an unknown version."""
        if not cls.VERSION_MIN <= version <= cls.VERSION_MAX:
            known = f"{cls.VERSION_MIN} to {cls.VERSION_MAX}"
            raise UnsupportedVersionError(f"{cls.__name__} has no version {version}: the versions are {known}")

    def to_json(self, version: int) -> dict[str, Any]:
        """Return the fields of a version under Kafka's names, like its ``JsonConverter``: bytes are base64."""
        return {
            field.kafka_name: _json_of(getattr(self, field.name), version)
            for field in self.FIELDS
            if version in field.layout.versions
            and (version not in field.layout.tagged or getattr(self, field.name) != field.default)
        }


def _json_of(value: Any, version: int) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return id_text(value)
    if isinstance(value, Message):
        return value.to_json(version)
    if isinstance(value, tuple):
        return [_json_of(item, version) for item in value]
    return value


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(of,))
def message(*, versions: str = "none", flexible: str = "none", api_key: int = -1) -> Callable[[type[M]], type[M]]:
    """Make a class a message. A structure has no ``versions`` of its own: it has those of its message."""

    def made(cls: type[M]) -> type[M]:
        # A class of its own is made for the slots, so that attributes are set afterwards.
        made_cls = _slotted(cls)
        known = parse_versions(versions)
        made_cls.VERSION_MIN, made_cls.VERSION_MAX = known.first, known.last
        made_cls.FLEXIBLE = parse_versions(flexible)
        made_cls.API_KEY = api_key
        made_cls.DECODERS, made_cls.ENCODERS = {}, {}
        made_cls.FIELDS = tuple(field_of(field) for field in dataclasses.fields(made_cls) if "layout" in field.metadata)
        return made_cls

    return made


def read_version(data: Buffer) -> int:
    """Read the i16 version at the start of a record. Raises ``InvalidRecordError``."""
    if len(data) < 2:
        raise InvalidRecordError(f"a record of {len(data)} bytes: it begins with a version of 2")
    return int.from_bytes(data[:2], "big", signed=True)


def read_versioned(cls: type[M], data: Buffer) -> tuple[int, M]:
    """Read an i16 version and the message after it: (version, message). Raises the errors of ``Message.decode``."""
    version = read_version(data)
    return version, cls.decode_from(data, version, 2)[0]


def write_versioned(message: Message, version: int) -> bytes:
    """Write an i16 version and a message of that version."""
    return version.to_bytes(2, "big", signed=True) + message.encode(version)

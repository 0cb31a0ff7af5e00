"""Decoding of Protobuf messages to columns, field by field.

Serializers write fields in the order of their numbers. So one pass over the fields reads each field at each payload's
current position. The pass fails for some payloads: fields in another order or interleaved, a message in several
parts, a packed field that is not packed. The Protobuf library parses such a payload and serializes it in order, and
the reader reads it again. Therefore the library decides validity and reports faults. The results have the types of
``millrace.schemas.protobuf``. Source: Protobuf's encoding guide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from millrace.payloads.numbers import decimals, from_words
from millrace.payloads.wire import Cursor, Faults, Flags, Longs, lists, scatter, unzigzag
from millrace.schemas.proto_files import ProtoFile
from millrace.schemas.protobuf import DECIMAL_MESSAGE, WELL_KNOWN, WRAPPERS, is_map, message_of, message_schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_WIRE_TYPES: Final = {
    1: _EIGHT, 2: _FOUR, 3: _VARINT, 4: _VARINT, 5: _VARINT, 6: _EIGHT, 7: _FOUR, 8: _VARINT, 9: _BYTES,
    11: _BYTES, 12: _BYTES, 13: _VARINT, 14: _VARINT, 15: _FOUR, 16: _EIGHT, 17: _VARINT, 18: _VARINT,
}  # fmt: skip
_STRING, _BINARY, _MESSAGE, _ENUM = 9, 12, 11, 14
_UNSIGNED_32: Final = (7, 13)
_ZIGZAG_32: Final = 17
_ZIGZAG: Final = (_ZIGZAG_32, 18)
_NANOS_MAX: Final = 999_999_999
_YEAR_1_SECONDS: Final = -62_135_596_800
_YEAR_9999_SECONDS: Final = 253_402_300_799
_LOW_32: Final = np.uint64(0xFFFFFFFF)
_UNORDERED: Final = "its fields cannot be parsed"

DURATION_SECONDS_MAX: Final = 315_576_000_000
"""Limit of ``google.protobuf.Duration``, about 10,000 years."""

Reader: TypeAlias = Callable[[Cursor], pa.Array]


@dataclass(frozen=True, slots=True)
class ProtobufReader:
    """Reader of payloads that are messages of one type. ``schema`` is that of the result."""

    schema: pa.Schema
    _message: _Message
    _class: Any

    @classmethod
    def of(cls, file: ProtoFile, descriptor: Descriptor) -> ProtobufReader:
        """Create a reader; raises ``SchemaError`` for a message without columns."""
        schema = message_schema(descriptor, file)
        message = _Message.of(descriptor, pa.struct(list(schema)), "")
        return cls(schema, message, file.message_class(descriptor))

    def read(self, cursor: Cursor) -> pa.RecordBatch:
        """Read a message of each payload."""
        trial = Cursor(cursor.wire, Faults(len(cursor)), cursor.rows, cursor.position.copy(), cursor.end)
        struct = self._message.read(trial)
        again = np.flatnonzero(trial.faults.are_there(trial.rows))
        if len(again):
            struct = self._read_again(cursor, again, struct)
        return pa.RecordBatch.from_arrays(struct.flatten(), names=self.schema.names)

    def _read_again(self, cursor: Cursor, which: npt.NDArray[Any], struct: pa.Array) -> pa.Array:
        """Let the library reorder the fields of payloads, and read the results."""
        from google.protobuf.message import DecodeError

        payloads = []
        for at in which:
            try:
                data = cursor.wire.bytes[cursor.position[at] : cursor.end[at]].tobytes()
                message = self._class.FromString(data)
                message.DiscardUnknownFields()
                payloads.append(message.SerializeToString())
            except (DecodeError, ValueError) as error:
                cursor.faults.add(cursor.rows[[at]], f"it is not a {self._class.DESCRIPTOR.full_name}: {error}")
                payloads.append(b"")
        ordered = Cursor.over(pa.array(payloads, pa.binary()))
        read = self._message.read(ordered)
        for row, text in ordered.faults.texts().items():
            cursor.faults.add(cursor.rows[which[[row]]], text)
        place = np.arange(len(struct))
        place[which] = len(struct) + np.arange(len(which))
        return pa.concat_arrays([struct, read]).take(pa.array(place))


@dataclass(frozen=True, slots=True)
class _Field:
    """Reader of one field. ``tag`` precedes each occurrence.

    ``read`` reads a value after its tag.
    """

    tag: int
    tag_bytes: int
    type: pa.DataType
    read: Reader
    default: pa.Scalar | None
    """Value for a payload without the field; None means null, or an empty list or map."""
    packed_tag: int | None = None
    packed: Callable[[Cursor], tuple[pa.Array, Any]] | None = None

    def column(self, cursor: Cursor) -> pa.Array:
        if pat.is_nested(self.type) and not pat.is_struct(self.type):
            return self._repeated(cursor)
        here = _at_tag(cursor, self.tag, self.tag_bytes)
        if here.all():
            cursor.advance(self.tag_bytes, "")
            return self.read(cursor)
        rows = np.flatnonzero(here)
        part = cursor.take(rows)
        part.advance(self.tag_bytes, "")
        values = scatter(self.read(part), rows, len(cursor))
        cursor.position[rows] = part.position
        return values if self.default is None else values.fill_null(self.default)

    def _repeated(self, cursor: Cursor) -> pa.Array:
        if self.packed is not None and self.packed_tag is not None:
            here = _at_tag(cursor, self.packed_tag, self.tag_bytes)
            rows = np.flatnonzero(here)
            if len(rows):
                part = cursor.take(rows)
                part.advance(self.tag_bytes, "")
                values, counts = self.packed(part)
                cursor.position[rows] = part.position
                lengths = np.zeros(len(cursor) + 1, np.int64)
                lengths[rows + 1] = counts
                return self._list(values, pa.array(np.cumsum(lengths), pa.int32()))
        elements, owners = [], []
        active = np.flatnonzero(_at_tag(cursor, self.tag, self.tag_bytes))
        while len(active):
            part = cursor.take(active)
            part.advance(self.tag_bytes, "")
            elements.append(self.read(part))
            owners.append(active)
            cursor.position[active] = part.position
            active = active[_at_tag(part, self.tag, self.tag_bytes)]
        return self._list(*lists(elements, owners, len(cursor), self._item))

    @property
    def _item(self) -> pa.DataType:
        if pat.is_map(self.type):
            return pa.struct([("key", self.type.key_type), ("value", self.type.item_type)])
        return self.type.value_type

    def _list(self, values: pa.Array, offsets: pa.Array) -> pa.Array:
        if pat.is_map(self.type):
            keys, items = values.flatten()
            return pa.MapArray.from_arrays(offsets, keys, items, type=self.type)
        return pa.ListArray.from_arrays(offsets, values, type=self.type)


@dataclass(frozen=True, slots=True)
class _Message:
    """Fields of a message, in the order of their numbers.

    ``places`` are the indexes of the columns in ``fields``.
    """

    fields: tuple[_Field, ...]
    places: tuple[int, ...]
    numbers: frozenset[int]
    types: tuple[pa.Field, ...]
    is_entry: bool

    @classmethod
    def of(cls, descriptor: Descriptor, data_type: pa.DataType, path: str) -> _Message:
        prefix = f"{path}." if path else ""
        made = [_field(each, data_type.field(at).type, prefix + each.name) for at, each in enumerate(descriptor.fields)]
        order = sorted(range(len(made)), key=lambda at: descriptor.fields[at].number)
        places = sorted(range(len(made)), key=order.__getitem__)
        return cls(
            tuple(made[at] for at in order),
            tuple(places),
            frozenset(each.number for each in descriptor.fields),
            tuple(data_type),
            bool(descriptor.GetOptions().map_entry),
        )

    def read(self, cursor: Cursor) -> pa.Array:
        columns = [field.column(cursor) for field in self.fields]
        if not self.is_entry:
            # A map entry with further fields is left to the library.
            self._skip_unknown(cursor)
        left = cursor.position < cursor.end
        if left.any():
            cursor.fail(left, _UNORDERED)
        return pa.StructArray.from_arrays([columns[at] for at in self.places], fields=list(self.types))

    def _skip_unknown(self, cursor: Cursor) -> None:
        """Skip fields of newer versions of the message, which have higher numbers."""
        rows = np.flatnonzero(cursor.position < cursor.end)
        while len(rows):
            part = cursor.take(rows)
            tag = part.varint("")
            kind = (tag & np.uint64(7)).astype(np.int64)
            number = (tag >> np.uint64(3)).astype(np.int64)
            is_number = (number > 0) & (number < 1 << 29)
            skipped = is_number & ~np.isin(number, list(self.numbers)) & np.isin(kind, (_VARINT, _EIGHT, _BYTES, _FOUR))
            rows, part, kind = rows[skipped], part.take(skipped), kind[skipped]
            for each in np.unique(kind):
                of_kind = np.flatnonzero(kind == each)
                some = part.take(of_kind)
                if each == _VARINT:
                    some.varint("")
                elif each == _BYTES:
                    some.lengths(some.varint("").view(np.int64), "")
                else:
                    some.advance(8 if each == _EIGHT else 4, "")
                part.position[of_kind] = some.position
            cursor.position[rows] = part.position
            rows = rows[part.position < part.end]


def _at_tag(cursor: Cursor, tag: int, size: int) -> Flags:
    bytes_, position = cursor.wire.bytes, cursor.position
    if size == 1:
        here: Flags = (bytes_.take(position) == tag) & (position < cursor.end)
        return here
    mask = np.uint32((1 << (8 * size)) - 1)
    found: Flags = ((cursor.wire.halves[position] & mask) == np.uint32(tag)) & (position < cursor.end)
    return found


def _tag(number: int, wire_type: int) -> tuple[int, int]:
    """Return a tag's bytes as a little-endian number, and their count."""
    raw, data = number << 3 | wire_type, b""
    while raw > 0x7F:
        data += bytes([raw & 0x7F | 0x80])
        raw >>= 7
    data += bytes([raw])
    # Field numbers have 29 bits; a tag of five bytes exceeds the four bytes that are compared.
    return int.from_bytes(data[:4], "little"), len(data)


def _field(field: FieldDescriptor, data_type: pa.DataType, path: str) -> _Field:
    if is_map(field):
        return _Field(*_tag(field.number, _BYTES), data_type, _entry(field, data_type, path), None)
    single = data_type.value_type if field.is_repeated else data_type
    wire_type = _WIRE_TYPES.get(field.type, _BYTES)
    tag, size = _tag(field.number, wire_type)
    reader = _value(field, single, path)
    if field.is_repeated:
        if wire_type == _BYTES:
            return _Field(tag, size, data_type, reader, None)
        packed_tag, _ = _tag(field.number, _BYTES)
        return _Field(tag, size, data_type, reader, None, packed_tag, _packed(reader, wire_type, path))
    default = None if field.has_presence else pa.scalar(_default(field, single), single)
    return _Field(tag, size, data_type, reader, default)


def _default(field: FieldDescriptor, data_type: pa.DataType) -> Any:
    if field.type == _ENUM:
        assert field.enum_type is not None
        return field.enum_type.values_by_number[0].name
    return (
        pa.array([field.default_value]).cast(data_type)[0].as_py() if pat.is_decimal(data_type) else field.default_value
    )


def _value(field: FieldDescriptor, data_type: pa.DataType, path: str) -> Reader:
    kind = field.type
    if kind in (_STRING, _BINARY):

        def stretch(cursor: Cursor) -> pa.Array:
            starts, lengths = cursor.lengths(cursor.varint(path).view(np.int64), path)
            return cursor.text(starts, lengths, path) if kind == _STRING else cursor.binary(starts, lengths)

        return stretch
    if kind == _ENUM:
        assert field.enum_type is not None
        return _enum(field.enum_type, path)
    if kind not in _WIRE_TYPES or kind == _MESSAGE:
        return _nested(message_of(field), data_type, path)
    return _number(kind, data_type, path)


def _number(kind: int, data_type: pa.DataType, path: str) -> Reader:
    wire_type = _WIRE_TYPES[kind]

    def read(cursor: Cursor) -> pa.Array:
        if wire_type == _VARINT:
            word = cursor.varint(path)
        else:
            word = cursor.fixed(8 if wire_type == _EIGHT else 4, path)
        if pat.is_floating(data_type):
            return pa.array(word.view(np.float64) if kind == 1 else word.astype(np.uint32).view(np.float32))
        if pat.is_boolean(data_type):
            return pa.array(word != 0)
        if pat.is_decimal(data_type):
            return pa.array(word).cast(data_type)
        # As in the library, only the low bits of an oversized number count.
        if kind in _UNSIGNED_32:
            return pa.array((word & _LOW_32).view(np.int64))
        if kind == _ZIGZAG_32:
            word = word & _LOW_32
        values = unzigzag(word) if kind in _ZIGZAG else word.view(np.int64)
        return pa.array(values.astype(np.int32) if data_type == pa.int32() else values)

    return read


def _enum(descriptor: EnumDescriptor, path: str) -> Reader:
    numbers = np.array(sorted(descriptor.values_by_number), np.int64)
    names = pa.array([descriptor.values_by_number[int(number)].name for number in numbers], pa.string())

    def read(cursor: Cursor) -> pa.Array:
        values = cursor.varint(path).view(np.int64).astype(np.int32).astype(np.int64)
        place = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        known = numbers[place] == values
        found = names.take(pa.array(place))
        # A value of an open enum without a name keeps its number.
        return (
            found if known.all() else pa.array(np.where(known, found.to_numpy(False), values.astype(str)), pa.string())
        )

    return read


def _nested(descriptor: Descriptor, data_type: pa.DataType, path: str) -> Reader:
    name = descriptor.full_name
    raw = data_type if pat.is_struct(data_type) else None
    if name in WRAPPERS:
        raw = pa.struct([("value", data_type)])
    elif name in WELL_KNOWN or name == DECIMAL_MESSAGE:
        raw = pa.struct([(each.name, _SCALAR_OF[each.type]) for each in descriptor.fields])
    assert raw is not None
    message = _Message.of(descriptor, raw, path)

    def read(cursor: Cursor) -> pa.Array:
        starts, lengths = cursor.lengths(cursor.varint(path).view(np.int64), path)
        inner = Cursor(cursor.wire, cursor.faults, cursor.rows, starts, starts + lengths)
        struct = message.read(inner)
        if name in WRAPPERS:
            return struct.field(0)
        if name == DECIMAL_MESSAGE:
            return _decimal(struct, data_type, cursor, path)
        return _well_known(name, struct, data_type, cursor, path) if name in WELL_KNOWN else struct

    return read


_SCALAR_OF: Final = {3: pa.int64(), 5: pa.int32(), 12: pa.binary(), 13: pa.int64()}


def _well_known(name: str, struct: pa.Array, data_type: pa.DataType, cursor: Cursor, path: str) -> pa.Array:
    parts = [each.to_numpy(zero_copy_only=False).astype(np.int64) for each in struct.flatten()]
    if name == "google.type.Date":
        year, month, day = parts
        return from_words(_days(year, month, day, cursor, path), data_type, cursor, path)
    if name == "google.type.TimeOfDay":
        hours, minutes, seconds, nanos = parts
        wrong = ~(_is_in(hours, 23) & _is_in(minutes, 59) & _is_in(seconds, 59) & _is_in(nanos, _NANOS_MAX))
        cursor.faults.add(cursor.rows[wrong], f"{path}: it is not a time of day")
        hours = np.where(wrong, 0, hours)
        return from_words(((hours * 60 + minutes) * 60 + seconds) * 10**9 + nanos, data_type, cursor, path)
    seconds, nanos = parts
    if name == "google.protobuf.Duration":
        wrong = (np.abs(seconds) > DURATION_SECONDS_MAX) | (np.abs(nanos) > _NANOS_MAX)
    else:
        # The years 1 to 9999, with nanoseconds that count forward.
        wrong = (seconds < _YEAR_1_SECONDS) | (seconds > _YEAR_9999_SECONDS) | ~_is_in(nanos, _NANOS_MAX)
    if wrong.any():
        cursor.faults.add(cursor.rows[wrong], f"{path}: a time is out of range")
        seconds = np.where(wrong, 0, seconds)
    return from_words(seconds * 1_000_000 + nanos // 1_000, data_type, cursor, path)


def _days(year: Longs, month: Longs, day: Longs, cursor: Cursor, path: str) -> Longs:
    """Return the days since 1970. A date that the calendar does not have is a fault."""
    wrong = (year < 1) | (year > 9999) | (month < 1) | (month > 12) | (day < 1) | (day > 31)
    year, month, day = (np.where(wrong, 1, part) for part in (year, month, day))
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    dates = months.astype("datetime64[D]") + (day - 1)
    wrong |= dates.astype("datetime64[M]") != months
    if wrong.any():
        cursor.faults.add(cursor.rows[wrong], f"{path}: it is not a date")
    return dates.astype(np.int64)


def _is_in(numbers: Longs, most: int) -> Flags:
    found: Flags = (numbers >= 0) & (numbers <= most)
    return found


def _decimal(struct: pa.Array, data_type: pa.DataType, cursor: Cursor, path: str) -> pa.Array:
    value, _, scale = struct.flatten()
    wrong = scale.to_numpy(zero_copy_only=False) != data_type.scale
    if wrong.any():
        cursor.faults.add(cursor.rows[wrong], f"{path}: the scale of the decimal is not {data_type.scale}")
    inner = Cursor.over(value)
    inner.faults, inner.rows = cursor.faults, cursor.rows
    return decimals(inner, inner.position, inner.end - inner.position, data_type, path)


def _entry(field: FieldDescriptor, data_type: pa.DataType, path: str) -> Reader:
    """Read a map's entries: messages of a key and a value, both optional."""
    entry = pa.struct([("key", data_type.key_type), ("value", data_type.item_type)])
    message = _Message.of(message_of(field), entry, path)

    def read(cursor: Cursor) -> pa.Array:
        starts, lengths = cursor.lengths(cursor.varint(path).view(np.int64), path)
        struct = message.read(Cursor(cursor.wire, cursor.faults, cursor.rows, starts, starts + lengths))
        keys, values = struct.flatten()
        absent = values.is_null()
        if values.null_count:
            # A missing value that is a message means an empty message, which the library writes.
            cursor.faults.add(cursor.rows[absent.to_numpy(zero_copy_only=False)], _UNORDERED)
        return pa.StructArray.from_arrays([keys, values], fields=list(entry))

    return read


def _packed(reader: Reader, wire_type: int, path: str) -> Callable[[Cursor], tuple[pa.Array, Any]]:
    """Read all numbers of packed fields at once, because their starts are visible in the bytes."""

    def read(cursor: Cursor) -> tuple[pa.Array, Longs]:
        starts, lengths = cursor.lengths(cursor.varint(path).view(np.int64), path)
        ends = starts + lengths
        size = 8 if wire_type == _EIGHT else 4
        if wire_type == _VARINT:
            before = np.concatenate([[0], np.cumsum(lengths)])
            inside = np.arange(before[-1]) - np.repeat(before[:-1] - starts, lengths)
            last = cursor.wire.bytes[inside] < 0x80
            owner = np.repeat(np.arange(len(cursor)), lengths)
            counts = np.bincount(owner[last], minlength=len(cursor))
            # A number begins after another one's end, and at the start of a field even if the one before is unfinished.
            first = np.concatenate([[True], last[:-1]]) if len(last) else last
            first[before[:-1][lengths > 0]] = True
            positions, owner = inside[first], owner[first]
            unfinished = (lengths > 0) & (cursor.wire.bytes[ends - 1] >= 0x80)
            if unfinished.any() or len(positions) != counts.sum():
                cursor.faults.add(cursor.rows[unfinished], f"{path}: {_UNORDERED}")
                keep = ~unfinished[owner]
                positions, owner = positions[keep], owner[keep]
                counts = np.bincount(owner, minlength=len(cursor))
        else:
            uneven = lengths % size != 0
            cursor.faults.add(cursor.rows[uneven], f"{path}: {_UNORDERED}")
            counts = np.where(uneven, 0, lengths // size)
            owner = np.repeat(np.arange(len(cursor)), counts)
            nth = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
            positions = starts[owner] + nth * size
        each = Cursor(cursor.wire, cursor.faults, cursor.rows[owner], positions, ends[owner])
        return reader(each), counts

    return read

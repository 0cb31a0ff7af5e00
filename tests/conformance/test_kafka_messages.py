"""Tests of Kafka's messages against ``kio``.

Each side reads the bytes that the other one wrote, for each message and version that both know.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import UnknownEntity, load_entity_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from millrace.kafka_protocol.fields import NIL_UUID, Field
from millrace.kafka_protocol.generator.render import snake_case
from millrace.kafka_protocol.message import Message

from ..unit.kafka_protocol.examples import VALUES, fields_in, made, message_classes, versions_of

EXAMPLES_PER_VERSION = 3
MILLISECONDS = st.integers(0, 10**12)
# kio converts these fields to other types, which have fewer values.
OF_KIO_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "error_code": st.sampled_from([code.value for code in ErrorCode]),
    "datetime_i64": MILLISECONDS,
    "timedelta_i64": MILLISECONDS,
}
ENTITY_TYPES = {"Request": EntityType.request, "Response": EntityType.response}


def kio_class(cls: type[Message], version: int) -> type[Any] | None:
    """Return kio's class of a version."""
    name, kind = cls.__name__, EntityType.data
    if name in ("RequestHeader", "ResponseHeader"):
        kind = EntityType.header
    for suffix, entity_type in ENTITY_TYPES.items():
        if name.endswith(suffix):
            name, kind = name.removesuffix(suffix), entity_type
    try:
        module = load_entity_module(snake_case(name), version, kind)
    except UnknownEntity:
        return None
    found: type[Any] = getattr(module, cls.__name__)
    return found


def cases() -> Iterator[Any]:
    for cls in message_classes():
        # kio has no records of the coordinators' topics. test_coordinator_records has Kafka's own bytes of these.
        if not cls.__name__.endswith(("Key", "Value")):
            yield pytest.param(cls, id=cls.__name__)


@pytest.mark.parametrize("cls", list(cases()))
def test_kio_reads_what_millrace_writes_and_the_other_way(cls: type[Message]) -> None:
    for version in versions_of(cls):
        theirs = kio_class(cls, version)
        assert theirs is not None, f"kio has no {cls.__name__} of version {version}"
        check_version(cls, version, theirs)


def check_version(cls: type[Message], version: int, theirs: type[Any]) -> None:
    read, write = entity_reader(theirs), entity_writer(theirs)

    @settings(max_examples=EXAMPLES_PER_VERSION, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(messages(cls, version, theirs))
    def check(message: Message) -> None:
        data = message.encode(version)
        assert b"".join(message.encode_parts(version)) == data
        entity, size_bytes = read(data, 0)
        assert size_bytes == len(data)
        assert converted(message, entity, version) == message
        written = io.BytesIO()
        write(written, entity)
        assert cls.decode_from(written.getvalue(), version, 0) == (message, written.tell())
        assert cls.decode(memoryview(b"head" + data)[4:], version) == message

    check()


def messages(cls: type[Message], version: int, theirs: type[Any]) -> st.SearchStrategy[Message]:
    """Draw messages whose field values kio can hold."""
    ours, hints = fields_in(cls, version), typing.get_type_hints(theirs)
    kio_fields = dataclasses.fields(theirs)
    assert [field.name for field in kio_fields] == [
        kio_name(field, other) for field, other in zip(ours, kio_fields, strict=True)
    ]
    values = {
        field.name: values_of(field, version, other, hints[other.name])
        for field, other in zip(ours, kio_fields, strict=True)
    }
    return st.fixed_dictionaries(values).map(lambda drawn: made(cls, drawn))


def kio_name(field: Field, other: dataclasses.Field[Any]) -> str:
    """Return the Python name of kio's field. kio omits the unit in names of times, and avoids builtins."""
    is_time = "timedelta" in other.metadata.get("kafka_type", "") or "datetime" in other.metadata.get("kafka_type", "")
    name = field.name.removesuffix("_ms") if is_time else field.name
    return other.name if other.name == f"{name}_" else name


def values_of(field: Field, version: int, other: dataclasses.Field[Any], hint: Any) -> st.SearchStrategy[Any]:
    layout = field.layout
    if layout.element is not None:
        values: st.SearchStrategy[Any] = messages(layout.element, version, entity_of(hint))
    else:
        values = OF_KIO_TYPE.get(other.metadata["kafka_type"], VALUES[layout.kind])
        if type(None) in typing.get_args(hint) and layout.kind == "int64":
            values = st.just(-1) | values
    if layout.is_array:
        values = st.lists(values, max_size=2).map(tuple)
    return st.none() | values if version in layout.nullable else values


def entity_of(hint: Any) -> type[Any]:
    """Return the class of a structure in ``Entity``, ``tuple[Entity, ...]`` or one of these or None."""
    if dataclasses.is_dataclass(hint):
        return typing.cast(type[Any], hint)
    return next(found for found in map(entity_of, typing.get_args(hint)) if found)


def converted(ours: Any, theirs: Any, version: int) -> Any:
    """Return kio's value in the form of ``ours``, which decides the meaning of kio's None."""
    if isinstance(ours, Message):
        pairs = zip(fields_in(type(ours), version), dataclasses.fields(theirs), strict=True)
        return made(
            type(ours),
            {a.name: converted(getattr(ours, a.name), getattr(theirs, b.name), version) for a, b in pairs},
        )
    if isinstance(ours, tuple):
        return tuple(converted(a, b, version) for a, b in zip(ours, theirs, strict=True))
    if theirs is None and ours in (NIL_UUID, -1):
        return ours
    if isinstance(theirs, enum.IntEnum):
        return int(theirs)
    if isinstance(theirs, datetime.timedelta):
        return theirs // datetime.timedelta(milliseconds=1)
    if isinstance(theirs, datetime.datetime):
        return (theirs - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(milliseconds=1)
    return theirs

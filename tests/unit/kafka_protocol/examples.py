"""Messages of all types and versions, drawn or with fixed content."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

import millrace.kafka_protocol.calls
import millrace.kafka_protocol.data
from millrace.kafka_protocol.fields import Field
from millrace.kafka_protocol.message import Message

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INTEGERS = {
    kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for kind, bits in (("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64))
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **INTEGERS,
    "uint16": st.integers(0, 2**16 - 1),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16).map(lambda data: UUID(bytes=data)),
    "string": TEXTS,
    "bytes": st.binary(max_size=6),
    "records": st.binary(max_size=200),
}
FULL: dict[str, Any] = {
    "bool": True,
    "float64": 1.5,
    "uuid": UUID(int=2**127 + 3),
    "string": "text",
    "bytes": b"bytes",
    "records": b"records",
}


def message_classes() -> list[type[Message]]:
    """Return every message that the generator has written, by name."""
    found: dict[str, type[Message]] = {}
    for package in (millrace.kafka_protocol.calls, millrace.kafka_protocol.data):
        for module in pkgutil.iter_modules(package.__path__):
            members = vars(importlib.import_module(f"{package.__name__}.{module.name}")).values()
            for each in members:
                if isinstance(each, type) and issubclass(each, Message) and each.VERSION_MIN <= each.VERSION_MAX:
                    found[each.__name__] = each
    return [found[name] for name in sorted(found)]


def versions_of(cls: type[Message]) -> range:
    return range(cls.VERSION_MIN, cls.VERSION_MAX + 1)


def fields_in(cls: type[Message], version: int) -> list[Field]:
    return [field for field in cls.FIELDS if version in field.layout.versions]


def made(cls: type[Message], values: dict[str, Any]) -> Message:
    """Create a message with these fields. All other fields have the default of a version without them."""
    return cls(**{field.name: values.get(field.name, field.default) for field in cls.FIELDS})


def full_message(cls: type[Message], version: int) -> Message:
    """Create a message without null fields and with two elements in each array."""
    return made(cls, {field.name: _full_value(field, version) for field in fields_in(cls, version)})


def _full_value(field: Field, version: int) -> Any:
    layout = field.layout
    one = full_message(layout.element, version) if layout.element else FULL.get(layout.kind, 5)
    return (one, one) if layout.is_array else one

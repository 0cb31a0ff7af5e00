"""Declarations of fields: type, versions, default, as in Kafka's message definitions.

``of`` declares a field of a message class in the notation of the definitions: ``versions="3+"``. A field exists in
some versions. In other versions it has its default and is not written.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias
from uuid import UUID

Kind: TypeAlias = Literal[
    "bool", "int8", "int16", "uint16", "int32", "int64", "float64", "uuid", "string", "bytes", "records", "struct"
]
"""Type of a field, or of the elements of an array."""
ArrayKind: TypeAlias = Literal["[]int8", "[]int16", "[]int32", "[]int64", "[]uuid", "[]string", "[]struct"]

FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Formats of ``struct`` for the kinds of fixed size."""
SIZES_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
NIL_UUID: Final = UUID(int=0)
"""Kafka's default of a UUID."""
_EMPTY_OF_KIND: Final[dict[str, object]] = {
    "bool": False,
    "float64": 0.0,
    "uuid": NIL_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}
_VERSION_LAST: Final = 2**15 - 1


@dataclass(frozen=True, slots=True)
class Versions:
    """Range of versions, from ``first`` to ``last``. No version is in it if ``first > last``."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == _VERSION_LAST:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def covers(self, other: Versions) -> bool:
        """Return whether each version of ``other`` is in this range."""
        return other.first > other.last or (self.first <= other.first and other.last <= self.last)


NO_VERSIONS: Final = Versions(0, -1)


def parse_versions(text: str) -> Versions:
    """Parse Kafka's notation: ``none``, ``3``, ``3-7``, ``3+``. Raises ``ValueError``."""
    if text == "none":
        return NO_VERSIONS
    parts = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
    if parts is None:
        raise ValueError(f"versions {text!r}: expected none, 3, 3-7 or 3+")
    first = int(parts[1])
    return Versions(first, _VERSION_LAST if parts[2] else int(parts[3] or first))


class Structure:
    """Base of messages and structures, with the fields that the compilers read."""

    __slots__ = ()

    FLEXIBLE: ClassVar[Versions] = NO_VERSIONS
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    @classmethod
    def of_defaults(cls) -> Self:
        """Return an instance whose fields have the defaults of versions without them."""
        instance = object.__new__(cls)
        for name, value in (("unknown_tagged_fields", ()), *((field.name, field.default) for field in cls.FIELDS)):
            setattr(instance, name, value)
        return instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Declaration of a field. ``nullable`` and ``tagged`` are versions; ``element`` is the class of a structure."""

    kind: str
    is_array: bool = False
    versions: Versions
    nullable: Versions = NO_VERSIONS
    tag: int | None = None
    tagged: Versions = NO_VERSIONS
    is_ignorable: bool = False
    is_never_flexible: bool = False
    element: type[Structure] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Field of a message.

    ``name`` is Python's name and ``kafka_name`` Kafka's. ``default`` is the value in versions without the field.
    """

    name: str
    kafka_name: str
    layout: Layout
    default: Any


def of(
    kind: Kind | ArrayKind,
    *,
    versions: str = "0+",
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    ignorable: bool = False,
    never_flexible: bool = False,
    element: type[Structure] | None = None,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field of a message.

    A caller must pass a field without ``default``. An ``ignorable`` field is left out in versions without it; any
    other one must have its default there. A field that is ``never_flexible`` has a plain length in all versions.
    """
    layout = Layout(
        kind=kind.removeprefix("[]"),
        is_array=kind.startswith("[]"),
        versions=parse_versions(versions),
        nullable=parse_versions(nullable),
        tag=tag,
        tagged=parse_versions(tagged),
        is_ignorable=ignorable,
        is_never_flexible=never_flexible,
        element=element,
    )
    return dataclasses.field(default=default, metadata={"layout": layout})


def field_of(declared: dataclasses.Field[Any]) -> Field:
    """Return the field that ``of`` declared."""
    layout: Layout = declared.metadata["layout"]
    default = declared.default
    if default is dataclasses.MISSING:
        default = _implied_default(layout)
    first, *others = declared.name.split("_")
    kafka_name = first + "".join(other[:1].upper() + other[1:] for other in others)
    return Field(name=declared.name, kafka_name=kafka_name, layout=layout, default=default)


def _implied_default(layout: Layout) -> Any:
    if layout.is_array:
        return ()
    if layout.element is not None:
        return layout.element.of_defaults()
    return _EMPTY_OF_KIND.get(layout.kind, 0)

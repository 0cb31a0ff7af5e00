"""Compiler of decoders: one function for each message and version.

The function is made at the first message of its version. Structures are read in place, without a call for each.

A decoder allocates no memory before it has checked that the bytes exist. The length of a string is at most the number
of remaining bytes. The length of an array is at most the number of elements that these bytes can hold.

An element of one byte becomes an object of 100 bytes and more. A reader of untrusted messages therefore limits the
number of elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.errors import MillraceError
from millrace.kafka_protocol import wire
from millrace.kafka_protocol.errors import MalformedMessageError
from millrace.kafka_protocol.fields import FORMATS, SIZES_BYTES, Field, Structure
from millrace.kafka_protocol.source import FixedRun, Source, Spot, failed_line, is_fixed

_CONSTANTS: Final[dict[str, Any]] = {
    "new": object.__new__,
    "read_varint": wire.read_varint,
    "uuid_of": wire.uuid_of,
    "length_problem": wire.length_problem,
    "string_problem": wire.string_problem,
    "elements_problem": wire.elements_problem,
    "WireError": wire.WireError,
    "unpack_from": struct.unpack_from,
}
UNLIMITED: Final = 2**63
_FAILURES: Final = (IndexError, struct.error, wire.WireError)


@dataclass(slots=True)
class Decoder:
    """Compiled decoder of a version of a message."""

    name: str
    version: int
    file_name: str
    spots: list[tuple[Spot, ...]]
    function: Callable[[wire.Buffer, int, int], tuple[Any, int]]

    def read(self, data: wire.Buffer, position: int, elements_max: int = UNLIMITED) -> tuple[Any, int]:
        """Read a message: (message, next position). Raises ``MalformedMessageError``.

        ``elements_max`` limits the number of its array elements and tagged fields, nested ones included.
        """
        try:
            return self.function(data, position, elements_max)
        except _FAILURES as error:
            raise self._described(error, len(data)) from None

    def _described(self, error: Exception, size_bytes: int) -> MillraceError:
        line, names = failed_line(error.__traceback__, self.file_name)
        position, spots = names["p"], self.spots[line - 1]
        reason = str(error) if isinstance(error, wire.WireError) else "the bytes end within the field"
        found = spots[-1]
        for spot in spots[:-1]:
            if position + SIZES_BYTES[spot.kind] > size_bytes:
                found = spot
                break
            position += SIZES_BYTES[spot.kind]
        return MalformedMessageError(
            reason,
            message_name=self.name,
            version=self.version,
            field=found.path.format(**{name: value for name, value in names.items() if name.startswith("i")}),
            position=min(position, size_bytes),
        )


def compile_decoder(cls: type[Structure], version: int) -> Decoder:
    """Compile the decoder of a version, which the message must have."""
    file_name = f"<{cls.__name__} {version}: decode>"
    compiler = _Compiler(version, is_flexible=version in cls.FLEXIBLE)
    function = compiler.function(cls, file_name)
    return Decoder(cls.__name__, version, file_name, compiler.source.spots, function)


@dataclass(slots=True)
class _Compiler:
    version: int
    is_flexible: bool
    source: Source = field(default_factory=lambda: Source(constants=dict(_CONSTANTS)))
    depth: int = 0

    def function(self, cls: type[Structure], file_name: str) -> Any:
        with self.source.block("def decode(data, p, elements_max):"):
            self.source.add("end = len(data)")
            self.source.add("view = memoryview(data)")
            self.source.add("left = elements_max")
            self.structure(cls, "m0", "")
            self.source.add("return m0, p")
        return self.source.function("decode", file_name)

    # --- structures ------------------------------------------------------------------------------------------

    def structure(self, cls: type[Structure], target: str, path: str) -> None:
        """Read a structure into the variable ``target``."""
        self.source.add(f"{target} = new({self.source.constant('C', cls)})")
        run, tagged = FixedRun(), []
        for each in cls.FIELDS:
            place, spot = f"{target}.{each.name}", Spot(path + each.name, kind=each.layout.kind)
            if self.version in each.layout.versions and self.version not in each.layout.tagged:
                if is_fixed(each):
                    self._extend(run, place, spot)
                    continue
                self._flush(run)
                self.value(each, place, spot.path)
                continue
            self.source.add(f"{place} = {self.source.constant('D', each.default)}")
            if self.version in each.layout.tagged:
                tagged.append(each)
        self.source.add(f"{target}.unknown_tagged_fields = ()")
        if not self.is_flexible:
            self._flush(run)
            return
        count, spot = f"n{self.depth}", Spot(path + "tagged_fields", kind="int8")
        run.spots.append(spot)
        run.targets.append(count)
        self._flush(run, suffix_is_unsigned=True)
        with self.source.block(f"if {count}:"):
            self._tagged(tagged, target, count, path)

    def _extend(self, run: FixedRun, place: str, spot: Spot) -> None:
        if spot.kind == "uuid":
            run.uuids.append((place, spot))
        run.spots.append(spot)
        run.targets.append(place)

    def _flush(self, run: FixedRun, *, suffix_is_unsigned: bool = False) -> None:
        if not run.targets:
            return
        size_bytes = run.size_bytes
        if run.targets == [f"n{self.depth}"]:
            self.source.add(f"{run.targets[0]} = data[p]", *run.spots)
        else:
            layout = ">" + "".join(FORMATS[spot.kind] for spot in run.spots)
            if suffix_is_unsigned:
                layout = layout[:-1] + "B"
            unpack = self.source.constant("U", struct.Struct(layout).unpack_from)
            self.source.add(f"{', '.join(run.targets)}, = {unpack}(data, p)", *run.spots)
        self.source.add(f"p += {size_bytes}")
        for place, _ in run.uuids:
            self.source.add(f"{place} = uuid_of({place})")
        run.spots.clear()
        run.targets.clear()
        run.uuids.clear()

    def _tagged(self, fields: list[Field], target: str, count: str, path: str) -> None:
        depth, spot = self.depth, Spot(path + "tagged_fields")
        self._long_varint(count, spot)
        self._spend(count, spot)
        self.source.add(f"u{depth} = []")
        with self.source.block(f"for _ in range({count}):"):
            self.source.add(f"t{depth}, p = read_varint(data, p)", spot)
            self.source.add(f"s{depth}, p = read_varint(data, p)", spot)
            self.source.add(f"e{depth} = p + s{depth}")
            with self.source.block(f"if e{depth} > end:"):
                self.source.add(f"raise length_problem(s{depth}, end - p)", spot)
            word = "if"
            for each in fields:
                with self.source.block(f"{word} t{depth} == {each.layout.tag}:"):
                    self.depth += 1
                    self.value(each, f"{target}.{each.name}", path + each.name)
                    self.depth -= 1
                    inner = Spot(path + each.name)
                    with self.source.block(f"if p != e{depth}:"):
                        reason = f"f'the tagged field has {{s{depth}}} bytes, its value {{p - e{depth} + s{depth}}}'"
                        self.source.add(f"raise WireError({reason})", inner)
                word = "elif"
            with self.source.block("else:" if fields else "if True:"):
                self.source.add(f"u{depth}.append((t{depth}, bytes(data[p:e{depth}])))")
                self.source.add(f"p = e{depth}")
        self.source.add(f"{target}.unknown_tagged_fields = tuple(u{depth})")

    # --- values ----------------------------------------------------------------------------------------------

    def value(self, each: Field, place: str, path: str) -> None:
        """Read the value of a field into ``place``."""
        layout = each.layout
        is_nullable = self.version in layout.nullable
        if layout.is_array:
            self._array(each, place, path, is_nullable=is_nullable)
        elif layout.kind == "struct":
            self._struct(each, place, path, is_nullable=is_nullable)
        elif layout.kind in FORMATS:
            run = FixedRun()
            self._extend(run, place, Spot(path, kind=layout.kind))
            self._flush(run)
        else:
            flexible = self.is_flexible and not layout.is_never_flexible
            self._bytes(layout.kind, place, path, is_nullable=is_nullable, is_flexible=flexible)

    def _struct(self, each: Field, place: str, path: str, *, is_nullable: bool) -> None:
        assert each.layout.element is not None
        self.depth += 1
        target = f"m{self.depth}"
        if is_nullable:
            self.source.add("b = data[p]", Spot(path))
            self.source.add("p += 1")
            with self.source.block("if b > 127:"):
                self.source.add(f"{place} = None")
            with self.source.block("else:"):
                self.structure(each.layout.element, target, path + ".")
                self.source.add(f"{place} = {target}")
        else:
            self.structure(each.layout.element, target, path + ".")
            self.source.add(f"{place} = {target}")
        self.depth -= 1

    def _long_varint(self, name: str, spot: Spot, then: str = "") -> None:
        with self.source.block(f"if {name} > 127:"):
            self.source.add(f"{name}, p = read_varint(data, p - 1)", spot)
            if then:
                with self.source.block(f"if {name} > {wire.STRING_BYTES_MAX + 1}:"):
                    self.source.add(f"raise {then}({name} - 1)", spot)

    def _length(self, spot: Spot, *, is_flexible: bool, layout: str, is_string: bool = False) -> None:
        """Read a length into ``n``; -1 means null."""
        if is_flexible:
            self.source.add("n = data[p]", spot)
            self.source.add("p += 1")
            self._long_varint("n", spot, "string_problem" if is_string else "")
            self.source.add("n -= 1")
        else:
            unpack = self.source.constant("U", _UNPACK[layout])
            self.source.add(f"n, = {unpack}(data, p)", spot)
            self.source.add(f"p += {struct.calcsize(layout)}")

    def _bytes(self, kind: str, place: str, path: str, *, is_nullable: bool, is_flexible: bool) -> None:
        spot, is_string = Spot(path), kind == "string"
        self._length(spot, is_flexible=is_flexible, layout=">h" if is_string else ">i", is_string=is_string)
        self.source.add("q = p + n")
        taken = {
            "string": 'str(data[p:q], "utf-8", "replace")',
            "bytes": "bytes(data[p:q])",
            "records": "view[p:q]",
        }[kind]
        with self.source.block("if n < 0 or q > end:"):
            if is_nullable:
                with self.source.block("if n != -1:"):
                    self.source.add("raise length_problem(n, end - p)", spot)
                self.source.add(f"{place} = None")
            else:
                self.source.add("raise length_problem(n, end - p)", spot)
        if is_nullable:
            with self.source.block("else:"):
                self.source.add(f"{place} = {taken}")
                self.source.add("p = q")
        else:
            self.source.add(f"{place} = {taken}")
            self.source.add("p = q")

    # --- arrays ----------------------------------------------------------------------------------------------

    def _array(self, each: Field, place: str, path: str, *, is_nullable: bool) -> None:
        spot, layout = Spot(path), each.layout
        self._length(spot, is_flexible=self.is_flexible, layout=">i")
        size_min = self._size_min(layout.kind, layout.element)
        problem = "length_problem(n, end - p, 'elements')"
        with self.source.block(f"if n < 0 or n * {size_min} > end - p:"):
            if is_nullable:
                with self.source.block("if n != -1:"):
                    self.source.add(f"raise {problem}", spot)
                self.source.add(f"{place} = None")
            else:
                self.source.add(f"raise {problem}", spot)
        if is_nullable:
            with self.source.block("else:"):
                self._elements(each, place, path)
        else:
            self._elements(each, place, path)

    def _elements(self, each: Field, place: str, path: str) -> None:
        layout = each.layout
        self._spend("n", Spot(path))
        if layout.kind in FORMATS and layout.kind != "uuid":
            self.source.add(f"{place} = unpack_from(f'>{{n}}{FORMATS[layout.kind]}', data, p)", Spot(path))
            self.source.add(f"p += n * {SIZES_BYTES[layout.kind]}")
            return
        self.depth += 1
        depth = self.depth
        inner = f"{path}[{{i{depth}}}]"
        self.source.add(f"l{depth} = []")
        self.source.add(f"a{depth} = l{depth}.append")
        with self.source.block(f"for i{depth} in range(n):"):
            if layout.element is not None:
                self.structure(layout.element, f"m{depth}", inner + ".")
                self.source.add(f"a{depth}(m{depth})")
            elif layout.kind == "uuid":
                self.source.add(f"a{depth}(uuid_of(bytes(data[p:p + 16])))")
                self.source.add("p += 16")
            else:
                self._bytes(layout.kind, f"v{depth}", inner, is_nullable=False, is_flexible=self.is_flexible)
                self.source.add(f"a{depth}(v{depth})")
        self.source.add(f"{place} = tuple(l{depth})")
        self.depth -= 1

    def _spend(self, count: str, spot: Spot) -> None:
        """Count elements before they are read."""
        self.source.add(f"left -= {count}")
        with self.source.block("if left < 0:"):
            self.source.add("raise elements_problem(elements_max)", spot)

    def _size_min(self, kind: str, element: type[Structure] | None) -> int:
        """Return the smallest size of an element."""
        if kind in SIZES_BYTES:
            return SIZES_BYTES[kind]
        if element is None:
            return 1 if self.is_flexible else (2 if kind == "string" else 4)
        size = int(self.is_flexible)
        for each in element.FIELDS:
            layout = each.layout
            if self.version not in layout.versions or self.version in layout.tagged:
                continue
            if layout.is_array:
                size += 1 if self.is_flexible else 4
            elif self.version in layout.nullable and layout.kind == "struct":
                size += 1
            else:
                size += self._size_min(layout.kind, layout.element)
        return max(size, 1)


_UNPACK: Final = {layout: struct.Struct(layout).unpack_from for layout in (">h", ">i")}

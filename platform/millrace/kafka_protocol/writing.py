"""Compiler of encoders.

Each message and version has one encoder, which is compiled at the first use. An encoder appends parts to a list, so
that records are not copied. Neighbouring fields of fixed size are one part.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.errors import MillraceError, UnsupportedVersionError
from millrace.kafka_protocol import wire
from millrace.kafka_protocol.errors import InvalidFieldError
from millrace.kafka_protocol.fields import FORMATS, Field, Layout, Structure
from millrace.kafka_protocol.source import FixedRun, Source, Spot, failed_line, is_fixed


class _NotInVersionError(Exception):
    pass


_CONSTANTS: Final[dict[str, Any]] = {
    "SHORT": wire.SHORT_VARINTS,
    "varint_bytes": wire.varint_bytes,
    "string_problem": wire.string_problem,
    "buffer_problem": wire.buffer_problem,
    "write_tagged": wire.write_tagged,
    "BUFFERS": frozenset((bytes, bytearray, memoryview)),
    "pack": struct.pack,
    "pack_int16": struct.Struct(">h").pack,
    "pack_int32": struct.Struct(">i").pack,
    "NotInVersionError": _NotInVersionError,
}
_FAILURES: Final = (struct.error, wire.WireError, AttributeError, TypeError, UnicodeEncodeError, _NotInVersionError)


@dataclass(slots=True)
class Encoder:
    """Compiled encoder of a version of a message."""

    name: str
    version: int
    file_name: str
    spots: list[tuple[Spot, ...]]
    function: Callable[[Any, list[wire.Buffer]], None]

    def write(self, message: Structure) -> list[wire.Buffer]:
        """Return the parts of a message. Raises ``InvalidFieldError``, ``UnsupportedVersionError``."""
        parts: list[wire.Buffer] = []
        try:
            self.function(message, parts)
        except _FAILURES as error:
            raise self._described(error) from None
        return parts

    def _described(self, error: Exception) -> MillraceError:
        line, names = failed_line(error.__traceback__, self.file_name)
        spots = self.spots[line - 1]
        if not spots:
            raise error
        found, reason = spots[-1], str(error)
        for spot in spots:
            value = eval(spot.value, {}, names) if spot.value else ""
            problem = _problem(spot.kind, value)
            if problem:
                found, reason = spot, problem
                break
        path = found.path.format(**{name: value for name, value in names.items() if name.startswith("i")})
        if isinstance(error, _NotInVersionError):
            return UnsupportedVersionError(
                f"{self.name} of version {self.version} has no field {path}, so that it must have its default "
                f"value: choose another version"
            )
        return InvalidFieldError(reason, message_name=self.name, version=self.version, field=path)


def _problem(kind: str, value: object) -> str | None:
    if value is None:
        return "null, but the field is not nullable in this version"
    if kind in FORMATS and kind != "uuid":
        try:
            struct.pack(">" + FORMATS[kind], value)
        except struct.error:
            return f"{value!r} is not a valid {kind}"
    return None


def _null(layout: Layout, *, is_flexible: bool) -> bytes:
    """Return the encoding of null."""
    if layout.kind == "struct" and not layout.is_array:
        return b"\xff"
    if is_flexible:
        return b"\0"
    return b"\xff" * (2 if layout.kind == "string" and not layout.is_array else 4)


def compile_encoder(cls: type[Structure], version: int) -> Encoder:
    """Compile the encoder of a version, which the message must have."""
    file_name = f"<{cls.__name__} {version}: encode>"
    compiler = _Compiler(version, is_flexible=version in cls.FLEXIBLE)
    function = compiler.function(cls, file_name)
    return Encoder(cls.__name__, version, file_name, compiler.source.spots, function)


@dataclass(slots=True)
class _Compiler:
    version: int
    is_flexible: bool
    source: Source = field(default_factory=lambda: Source(constants=dict(_CONSTANTS)))
    depth: int = 0
    add: str = "add"

    def function(self, cls: type[Structure], file_name: str) -> Any:
        with self.source.block("def encode(m0, parts):"):
            self.source.add("add = parts.append")
            self.structure(cls, "m0", "")
        return self.source.function("encode", file_name)

    # --- structures ------------------------------------------------------------------------------------------

    def structure(self, cls: type[Structure], target: str, path: str) -> None:
        """Write the structure in the variable ``target``."""
        run, tagged = FixedRun(), []
        for each in cls.FIELDS:
            layout, place = each.layout, f"{target}.{each.name}"
            spot = Spot(path + each.name, place, layout.kind)
            if self.version not in layout.versions:
                if not layout.is_ignorable:
                    absent = Spot(spot.path)
                    with self.source.block(f"if {place} != {self.source.constant('D', each.default)}:", absent):
                        self.source.add("raise NotInVersionError", absent)
            elif self.version in layout.tagged:
                tagged.append(each)
            elif is_fixed(each):
                run.spots.append(spot)
                run.targets.append(place + ".bytes" if layout.kind == "uuid" else place)
            else:
                self._flush(run)
                self.value(each, place, spot.path)
        if self.is_flexible:
            self._end_flexible(run, tagged, target, path)
        else:
            self._flush(run)
            inner = Spot(path + "unknown_tagged_fields")
            with self.source.block(f"if {target}.unknown_tagged_fields:", inner):
                self.source.add("raise NotInVersionError", inner)

    def _flush(self, run: FixedRun, suffix: str = "") -> None:
        if run.targets or suffix:
            pack = self.source.constant("P", run.packer(suffix).pack)
            self.source.add(f"{self.add}({pack}({', '.join(run.targets)}))", *run.spots)
        run.spots.clear()
        run.targets.clear()

    def _end_flexible(self, run: FixedRun, fields: list[Field], target: str, path: str) -> None:
        spot, unknown = Spot(path + "unknown_tagged_fields"), f"{target}.unknown_tagged_fields"
        declared = self.source.constant("T", frozenset(each.layout.tag for each in fields))
        if not fields:
            plain = FixedRun(list(run.spots), list(run.targets))
            with self.source.block(f"if {unknown}:", spot):
                self._flush(run)
                self.source.add(f"write_tagged({self.add}, (), {unknown}, {declared})", spot)
            with self.source.block("else:"):
                self._flush(plain, suffix="x")
            return
        self._flush(run)
        outer, depth = self.add, self.depth
        self.source.add(f"g{depth} = []")
        for each in fields:
            place = f"{target}.{each.name}"
            with self.source.block(f"if {place} != {self.source.constant('D', each.default)}:"):
                self.source.add(f"h{depth} = []")
                self.depth += 1
                self.add = f"h{depth}.append"
                self.value(each, place, path + each.name)
                self.depth -= 1
                self.add = outer
                self.source.add(f"g{depth}.append(({each.layout.tag}, b''.join(h{depth})))")
        with self.source.block(f"if g{depth} or {unknown}:", spot):
            self.source.add(f"write_tagged({self.add}, g{depth}, {unknown}, {declared})", spot)
        with self.source.block("else:"):
            self.source.add(f"{self.add}(b'\\0')")

    # --- values ----------------------------------------------------------------------------------------------

    def value(self, each: Field, place: str, path: str) -> None:
        """Write the value ``place`` of a field."""
        layout = each.layout
        spot = Spot(path, place, layout.kind if is_fixed(each) else "")
        if is_fixed(each):
            target = place + ".bytes" if layout.kind == "uuid" else place
            self._flush(FixedRun([spot], [target]))
            return
        name = f"v{self.depth}"
        self.source.add(f"{name} = {place}")
        if self.version not in layout.nullable:
            self._present(each, name, spot)
            return
        is_flexible = self.is_flexible and not layout.is_never_flexible
        with self.source.block(f"if {name} is None:"):
            self.source.add(f"{self.add}({_null(layout, is_flexible=is_flexible)!r})")
        with self.source.block("else:"):
            if layout.kind == "struct" and not layout.is_array:
                self.source.add(f"{self.add}(b'\\1')")
            self._present(each, name, spot)

    def _present(self, each: Field, name: str, spot: Spot) -> None:
        layout = each.layout
        if layout.is_array:
            self._array(each, name, spot)
        elif layout.element is not None:
            self.depth += 1
            self.source.add(f"m{self.depth} = {name}")
            self.structure(layout.element, f"m{self.depth}", spot.path + ".")
            self.depth -= 1
        else:
            is_flexible = self.is_flexible and not layout.is_never_flexible
            self._bytes(layout.kind, name, spot, is_flexible=is_flexible)

    def _length(self, name: str, spot: Spot, *, is_flexible: bool, is_string: bool = False) -> None:
        if is_flexible:
            self.source.add(f"n = len({name}) + 1", spot)
            if is_string:
                with self.source.block("if n < 128:"):
                    self.source.add(f"{self.add}(SHORT[n])")
                with self.source.block("else:"):
                    self._check_string("n - 1", spot)
                    self.source.add(f"{self.add}(varint_bytes(n))")
            else:
                self.source.add(f"{self.add}(SHORT[n] if n < 128 else varint_bytes(n))")
        elif is_string:
            self.source.add(f"n = len({name})", spot)
            self._check_string("n", spot)
            self.source.add(f"{self.add}(pack_int16(n))")
        else:
            self.source.add(f"{self.add}(pack_int32(len({name})))", spot)

    def _check_string(self, length: str, spot: Spot) -> None:
        with self.source.block(f"if {length} > {wire.STRING_BYTES_MAX}:"):
            self.source.add(f"raise string_problem({length})", spot)

    def _bytes(self, kind: str, name: str, spot: Spot, *, is_flexible: bool) -> None:
        if kind == "string":
            self.source.add(f"s = {name}.encode()", spot)
            self._length("s", spot, is_flexible=is_flexible, is_string=True)
            self.source.add(f"{self.add}(s)")
        else:
            with self.source.block(f"if {name}.__class__ not in BUFFERS:"):
                self.source.add(f"raise buffer_problem({name})", spot)
            self._length(name, spot, is_flexible=is_flexible)
            self.source.add(f"{self.add}({name})")

    def _array(self, each: Field, name: str, spot: Spot) -> None:
        layout = each.layout
        self._length(name, spot, is_flexible=self.is_flexible)
        if layout.kind in FORMATS and layout.kind != "uuid":
            letter = FORMATS[layout.kind]
            self.source.add(f"{self.add}(pack(f'>{{len({name})}}{letter}', *{name}))", Spot(spot.path, spot.value))
            return
        self.depth += 1
        depth = self.depth
        path = f"{spot.path}[{{i{depth}}}]"
        with self.source.block(f"for i{depth}, m{depth} in enumerate({name}):", spot):
            if layout.element is not None:
                self.structure(layout.element, f"m{depth}", path + ".")
            elif layout.kind == "uuid":
                self.source.add(f"{self.add}(m{depth}.bytes)", Spot(path, f"m{depth}", "uuid"))
            else:
                inner = Spot(path, f"m{depth}")
                self._bytes(layout.kind, f"m{depth}", inner, is_flexible=self.is_flexible)
        self.depth -= 1

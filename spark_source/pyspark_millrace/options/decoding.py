"""The options ``decode``, ``decode.*`` and ``badRecords``, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from millrace.errors import UsageError
from pyspark_millrace.options.reference import DECODE_OPTIONS, names_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark_millrace.options.given import GivenOptions

DECODE: Final = "decode"
DECODE_KEY: Final = "decode.key"
BAD_RECORDS: Final = "badRecords"
_SCHEMA_OPTIONS: Final = ("schema", "schemaFile", "schemaId", "subject")
_PART_OPTIONS: Final = (*_SCHEMA_OPTIONS, "message", "framing")
_KINDS: Final = ("avro", "json", "protobuf")
_FRAMINGS: Final = ("none", "confluent")
_DEAD_LETTER: Final = "deadletter:"


class BadRecords(Enum):
    """Treatment of records that cannot be decoded. The value is the closest mode of Spark's ``from_json``."""

    FAIL = "FAILFAST"
    NULL = "PERMISSIVE"
    DEAD_LETTER = "DROPMALFORMED"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOptions:
    """Decoding of keys or of values. Exactly one of ``schema``, ``schema_file``, ``schema_id``, ``subject`` is set."""

    prefix: str
    kind: str
    schema: str | None
    schema_file: str | None
    schema_id: int | None
    subject: str | None
    message: str
    is_framed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Decoding of values and keys. ``dead_letter_topic`` is set with ``BadRecords.DEAD_LETTER`` only."""

    value: PartOptions | None
    key: PartOptions | None
    bad_records: BadRecords
    dead_letter_topic: str | None


def parse_decode(given: GivenOptions) -> DecodeOptions | None:
    """Parse the options; returns None if nothing is decoded. Raises ``UsageError`` with option, value and accepted
    form.
    """
    value, key = _part(given, DECODE), _part(given, DECODE_KEY)
    if value is None and key is None:
        for name, text in given.present(*names_of(DECODE_OPTIONS)).items():
            raise UsageError(
                f"{name}={text!r} belongs to decode={'|'.join(_KINDS)}, which is missing: set it, or leave "
                "this option out"
            )
        return None
    bad_records, topic = _bad_records(given.text(BAD_RECORDS))
    return DecodeOptions(value=value, key=key, bad_records=bad_records, dead_letter_topic=topic)


def _part(given: GivenOptions, prefix: str) -> PartOptions | None:
    kind = _choice(prefix, given.text(prefix), _KINDS)
    options = given.present(*(f"{prefix}.{name}" for name in _PART_OPTIONS))
    if kind is None:
        for name, text in options.items():
            raise UsageError(
                f"{name}={text!r} belongs to {prefix}={'|'.join(_KINDS)}, which is missing: set it, or leave "
                "this option out"
            )
        return None
    named = [name for name in _SCHEMA_OPTIONS if f"{prefix}.{name}" in options]
    if len(named) != 1:
        forms = ", ".join(f"{prefix}.{name}" for name in _SCHEMA_OPTIONS)
        found = ", ".join(f"{prefix}.{name}" for name in named) or "none of them"
        raise UsageError(f"{prefix}={kind}: give exactly one of {forms} as the schema of the payloads; found {found}")
    message = options.get(f"{prefix}.message", "")
    if message and kind != "protobuf":
        raise UsageError(f"{prefix}.message={message!r} belongs to {prefix}=protobuf, not {kind}")
    framing = _choice(f"{prefix}.framing", options.get(f"{prefix}.framing"), _FRAMINGS)
    is_registered = named[0] in ("schemaId", "subject")
    return PartOptions(
        prefix=prefix,
        kind=kind,
        schema=options.get(f"{prefix}.schema"),
        schema_file=options.get(f"{prefix}.schemaFile"),
        schema_id=_whole_number(f"{prefix}.schemaId", options.get(f"{prefix}.schemaId")),
        subject=options.get(f"{prefix}.subject"),
        message=message,
        is_framed=is_registered if framing is None else framing == "confluent",
    )


def _choice(name: str, text: str | None, forms: tuple[str, ...]) -> str | None:
    if text is None or text.strip().lower() in forms:
        return None if text is None else text.strip().lower()
    raise UsageError(f"{name}={text!r}: expected one of {', '.join(forms)}")


def _whole_number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or not 0 < int(text) < 2**31:
        raise UsageError(f"{name}={text!r}: expected the id of a registered schema, a whole number from 1")
    return int(text)


def _bad_records(text: str | None) -> tuple[BadRecords, str | None]:
    forms: Mapping[str, BadRecords] = {"fail": BadRecords.FAIL, "null": BadRecords.NULL}
    stripped = (text or "fail").strip()
    if stripped.lower() in forms:
        return forms[stripped.lower()], None
    if stripped.lower().startswith(_DEAD_LETTER) and (topic := stripped[len(_DEAD_LETTER) :].strip()):
        return BadRecords.DEAD_LETTER, topic
    raise UsageError(f"{BAD_RECORDS}={text!r}: expected fail, null or {_DEAD_LETTER}<topic>")

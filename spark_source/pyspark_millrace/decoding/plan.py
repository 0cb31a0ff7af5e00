"""Schemas of payloads, found once on the driver, sent to every task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millrace.clients import PayloadRegistry
from millrace.errors import SchemaError, UnknownSchemaError, UsageError
from millrace.payloads import Framing, PayloadKind, PayloadSchema
from pyspark_millrace.options.decoding import BadRecords, DecodeOptions, PartOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.clients import TopicDescription


class PayloadSchemas(Protocol):
    """Broker calls of this module; implemented by ``BrokerClient``."""

    def payload_registry(self) -> PayloadRegistry:
        """Return the current schemas of payloads in the registry."""

    def describe(self, topic: str) -> TopicDescription:
        """Return one topic; raises ``UnknownTopicOrPartitionError``."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """Decoding of keys or of values.

    ``wanted`` is the reader's schema. ``known`` has the writers' schemas by the ids in payloads.
    """

    wanted: PayloadSchema
    framing: Framing
    known: Mapping[int, PayloadSchema]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Decoding of a query's keys and values."""

    value: PartPlan | None
    key: PartPlan | None
    bad_records: BadRecords
    dead_letter_topic: str | None

    def value_columns(self) -> pa.Schema | None:
        """Return the columns of decoded values, None if values are not decoded."""
        return None if self.value is None else self.value.wanted.columns()

    def key_columns(self) -> pa.Schema | None:
        """Return the fields of the struct of decoded keys, None if keys are not decoded."""
        return None if self.key is None else self.key.wanted.columns()


def plan_decoding(options: DecodeOptions, payload_schemas: PayloadSchemas, topics: frozenset[str]) -> DecodePlan:
    """Find the schemas, and check the dead-letter topic.

    ``topics`` are the topics of the query. Raises ``UsageError`` with the option for a missing schema, a schema without
    columns, and a topic that cannot take bad records.
    """
    registry: PayloadRegistry | None = None
    parts: list[PartPlan | None] = []
    for part in (options.value, options.key):
        if part is not None and registry is None and (part.is_framed or part.schema_id or part.subject):
            registry = payload_schemas.payload_registry()
        parts.append(None if part is None else _plan_part(part, registry))
    if options.dead_letter_topic is not None:
        if options.dead_letter_topic in topics:
            raise UsageError(
                f"badRecords=deadletter:{options.dead_letter_topic} is among the topics that the query reads, so "
                "it would read its own bad records: name another topic"
            )
        if payload_schemas.describe(options.dead_letter_topic).schema is not None:
            raise UsageError(
                f"badRecords=deadletter:{options.dead_letter_topic} is a typed topic, but bad records are bytes: "
                "name an opaque topic"
            )
    value, key = parts
    return DecodePlan(value, key, options.bad_records, options.dead_letter_topic)


def _plan_part(part: PartOptions, registry: PayloadRegistry | None) -> PartPlan:
    try:
        wanted = _wanted(part, registry).prepared()
        wanted.columns()
    except (SchemaError, UnknownSchemaError) as error:
        raise UsageError(f"{part.prefix}={part.kind}: {error.message}") from error
    known: dict[int, PayloadSchema] = {}
    if part.is_framed and registry is not None:
        for schema_id, schema in registry.schemas.items():
            if schema.kind == part.kind:
                known[schema_id] = registry.payload_schema(schema_id)
    if known and part.kind == PayloadKind.PROTOBUF:
        known = _compiled(known, wanted)
    return PartPlan(wanted, Framing.CONFLUENT if part.is_framed else Framing.NONE, known)


def _compiled(known: Mapping[int, PayloadSchema], wanted: PayloadSchema) -> dict[int, PayloadSchema]:
    """Compile on the driver, because tasks may lack the compiler. A file with several ids is compiled once."""
    by_text = {(wanted.text, tuple(wanted.references.items())): wanted.compiled}
    compiled = {}
    for schema_id, schema in known.items():
        key = (schema.text, tuple(schema.references.items()))
        if key not in by_text:
            by_text[key] = schema.prepared().compiled
        compiled[schema_id] = PayloadSchema(kind=schema.kind, compiled=by_text[key])
    return compiled


def _wanted(part: PartOptions, registry: PayloadRegistry | None) -> PayloadSchema:
    if part.schema_id is not None or part.subject is not None:
        assert registry is not None
        schema_id = part.schema_id if part.schema_id is not None else registry.latest(part.subject or "")
        found = registry.payload_schema(schema_id, part.message)
        if found.kind != part.kind:
            raise SchemaError(f"payload schema {schema_id} is of {found.kind} payloads")
        return found
    kind, text, imports = PayloadKind(part.kind), part.schema or "", {}
    if part.schema_file is not None:
        path = Path(part.schema_file)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{part.prefix}.schemaFile={part.schema_file!r} cannot be read: {error}") from None
        if kind is PayloadKind.PROTOBUF:
            from millrace.schemas.proto_files import proto_imports

            imports = proto_imports(path, text)
    if kind is PayloadKind.JSON and not text.lstrip().startswith("{"):
        from millrace.schemas import parse_ddl, to_json_schema

        text = json.dumps(to_json_schema(parse_ddl(text)))
    return PayloadSchema(kind=kind, text=text, references=imports, message=part.message)

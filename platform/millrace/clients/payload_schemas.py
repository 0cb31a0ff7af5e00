"""Payload schemas in the broker's registry, and registry dumps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace import payloads
from millrace.clients.connections import Connections
from millrace.errors import SchemaError
from millrace.protocol import millrace_pb2 as pb

if TYPE_CHECKING:
    from millrace.payloads import PayloadRegistry, RegisteredSchema


class PayloadSchemaOperations:
    """Operations of ``Admin`` for payload schemas."""

    _connections: Connections

    def register_payload_schemas(
        self, schemas: Sequence[RegisteredSchema], *, validate_only: bool = False
    ) -> list[RegisteredSchema]:
        """Register schemas, all or none; id 0 means the id of the same schema, or the next free one.

        Each schema is parsed first, with its references. Registering the same schema again changes nothing. Raises
        ``SchemaError`` for an invalid schema, or if an id or a subject's version has another schema already.
        """
        registry = payloads.PayloadRegistry.of([*self.payload_registry().schemas.values(), *schemas])
        for position, schema in enumerate(schemas):
            try:
                _check(schema, registry)
            except SchemaError as error:
                name = f"payload schema {schema.id}" if schema.id else f"schema {position + 1}"
                raise SchemaError(f"{name}: {error.message}") from error
        response = self._connections.call(
            lambda stub: stub.RegisterPayloadSchemas,
            pb.RegisterPayloadSchemasRequest(schemas=map(_message, schemas), validate_only=validate_only),
        )
        return [_registered(schema) for schema in response.schemas]

    def payload_registry(self) -> PayloadRegistry:
        """Fetch all payload schemas."""
        response = self._connections.call(lambda stub: stub.GetPayloadSchemas, pb.GetPayloadSchemasRequest())
        return payloads.PayloadRegistry.of(map(_registered, response.schemas))

    def delete_payload_schemas(self, ids: Iterable[int]) -> None:
        """Delete schemas; records with their ids can then no longer be decoded. Raises ``UnknownSchemaError``."""
        self._connections.call(
            lambda stub: stub.DeletePayloadSchemas,
            pb.DeletePayloadSchemasRequest(ids=ids),
            changes="delete payload schemas",
        )


def _check(schema: RegisteredSchema, registry: PayloadRegistry) -> None:
    """Parse a schema. A schema without columns may be registered, because other readers can use it."""
    references: dict[str, str] = {}
    registry.collect(schema, references)
    if schema.kind is payloads.PayloadKind.AVRO:
        from millrace.schemas.avro import load_avro

        load_avro(schema.text, references)
    elif schema.kind is payloads.PayloadKind.PROTOBUF:
        from millrace.schemas import compile_proto

        compile_proto(schema.text, references)
    else:
        try:
            json.loads(schema.text)
        except json.JSONDecodeError as error:
            raise SchemaError(f"it is not valid JSON: {error}") from None


def _message(schema: RegisteredSchema) -> pb.PayloadSchema:
    return pb.PayloadSchema(
        id=schema.id,
        kind=schema.kind.upper(),
        text=schema.text,
        references=[
            pb.PayloadSchema.Reference(name=each.name, subject=each.subject, version=each.version)
            for each in schema.references
        ],
        subjects=[
            pb.PayloadSchema.SubjectVersion(subject=subject, version=version) for subject, version in schema.subjects
        ],
    )


def _registered(schema: pb.PayloadSchema) -> RegisteredSchema:
    return payloads.RegisteredSchema(
        id=schema.id,
        kind=payloads.PayloadKind(schema.kind.lower()),
        text=schema.text,
        references=tuple(
            payloads.SchemaReference(name=each.name, subject=each.subject, version=each.version)
            for each in schema.references
        ),
        subjects=tuple((each.subject, each.version) for each in schema.subjects),
    )


# --- dumps ------------------------------------------------------------------------------------------------------

_DUMP_FORM: Final = (
    'an entry of a dump is {"subject": ..., "version": ..., "id": ..., "schema": ..., "schemaType": ...}'
)


def read_dump(text: str) -> list[RegisteredSchema]:
    """Read a Confluent registry's dump: the response of ``GET /schemas``, or the values of its topic, one a line.

    Deleted schemas and entries without a schema are skipped. Raises ``SchemaError`` for an invalid dump.
    """
    merged: dict[int, RegisteredSchema] = {}
    for entry in _entries(text):
        if not isinstance(entry, dict):
            raise SchemaError(_DUMP_FORM)
        value = entry.get("value", entry)
        value = json.loads(value) if isinstance(value, str) else value
        if not isinstance(value, dict) or value.get("deleted") or "schema" not in value:
            continue
        schema = _entry(value)
        before = merged.get(schema.id)
        if before is not None and before.text != schema.text:
            raise SchemaError(
                f"the dump has two schemas with id {schema.id}: import the contexts of the registry one by one"
            )
        merged[schema.id] = schema if before is None else _with_subjects(before, schema.subjects)
    return list(merged.values())


def write_dump(schemas: Iterable[RegisteredSchema]) -> list[dict[str, Any]]:
    """Write schemas in the format of a Confluent registry's ``GET /schemas``, for ``read_dump``: an entry a subject."""
    return [
        {
            "subject": subject,
            "version": version,
            "id": schema.id,
            "schemaType": schema.kind.upper(),
            "references": [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
            ],
            "schema": schema.text,
        }
        for schema in schemas
        for subject, version in schema.subjects or (("", 0),)
    ]


def _entries(text: str) -> Iterator[Any]:
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        whole = None
    if isinstance(whole, list):
        yield from whole
        return
    try:
        for line in text.splitlines():
            if line.strip():
                yield json.loads(line)
    except json.JSONDecodeError as error:
        raise SchemaError(f"it is not a dump of a registry: {error}; {_DUMP_FORM}") from None


def _entry(value: Mapping[str, Any]) -> RegisteredSchema:
    try:
        subject = value.get("subject") or ""
        return payloads.RegisteredSchema(
            id=int(value["id"]),
            kind=payloads.PayloadKind((value.get("schemaType") or "AVRO").lower()),
            text=str(value["schema"]),
            references=tuple(
                payloads.SchemaReference(name=each["name"], subject=each["subject"], version=int(each["version"]))
                for each in value.get("references") or ()
            ),
            subjects=((subject, int(value["version"])),) if subject else (),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(f"{_DUMP_FORM}, not {json.dumps(value)[:200]} ({error!r})") from None


def _with_subjects(schema: RegisteredSchema, subjects: Iterable[tuple[str, int]]) -> RegisteredSchema:
    return payloads.RegisteredSchema(
        id=schema.id,
        kind=schema.kind,
        text=schema.text,
        references=schema.references,
        subjects=tuple(dict.fromkeys((*schema.subjects, *subjects))),
    )

"""Registered payload schemas, by id and by subject and version.

Payloads contain the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.errors import SchemaError, UnknownSchemaError
from millrace.payloads.decoder import PayloadKind, PayloadSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReference:
    """Reference of a schema to another schema (Confluent's ``SchemaReference``).

    ``name`` is the name of the other schema in this one: an Avro name, a ``$ref`` or an imported file. ``subject`` and
    ``version`` identify the other schema.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A payload schema with the id that payloads carry. ``subjects`` are (subject, version)."""

    id: int
    kind: PayloadKind
    text: str
    references: tuple[SchemaReference, ...] = ()
    subjects: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PayloadRegistry:
    """Snapshot of all registered schemas."""

    schemas: Mapping[int, RegisteredSchema]
    _versions: Mapping[tuple[str, int], int] = field(repr=False)

    @classmethod
    def of(cls, schemas: Iterable[RegisteredSchema]) -> PayloadRegistry:
        """Index schemas by their subjects."""
        by_id = {schema.id: schema for schema in schemas}
        return cls(by_id, {version: schema.id for schema in by_id.values() for version in schema.subjects})

    def payload_schema(self, schema_id: int, message: str = "") -> PayloadSchema:
        """Return a schema with all its references; raises ``UnknownSchemaError`` naming a missing one."""
        schema = self.schemas.get(schema_id)
        if schema is None:
            raise UnknownSchemaError(
                f"no payload schema has id {schema_id}: register it with 'millrace schemas import --id {schema_id} "
                "FILE'"
            )
        references: dict[str, str] = {}
        self.collect(schema, references)
        return PayloadSchema(kind=schema.kind, text=schema.text, references=references, message=message)

    def latest(self, subject: str) -> int:
        """Return the id of a subject's newest version; raises ``UnknownSchemaError``."""
        versions = {version: schema_id for (name, version), schema_id in self._versions.items() if name == subject}
        if not versions:
            known = sorted({name for name, _ in self._versions})
            raise UnknownSchemaError(
                f"no payload schema has subject {subject}: the subjects are {', '.join(known) or 'none'}"
            )
        return versions[max(versions)]

    def collect(self, schema: RegisteredSchema, found: dict[str, str], within: tuple[int, ...] = ()) -> None:
        """Collect the texts of a schema's references, dependencies first. Raises ``UnknownSchemaError``."""
        if schema.id in within:
            raise SchemaError(f"payload schema {schema.id} refers to itself")
        for reference in schema.references:
            target = self._versions.get((reference.subject, reference.version))
            if target is None:
                raise UnknownSchemaError(
                    f"payload schema {schema.id} refers to version {reference.version} of subject {reference.subject} "
                    f"({reference.name}), which is not registered"
                )
            self.collect(self.schemas[target], found, (*within, schema.id))
            found.setdefault(reference.name, self.schemas[target].text)

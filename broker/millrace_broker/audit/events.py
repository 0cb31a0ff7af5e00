"""Rows of the audit, and batches of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import pyarrow as pa

from millrace.coordinator_records import AUDIT_COLUMNS
from millrace.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Compression, build_columnar_batch
from millrace.schemas import parse_ddl

_MICROSECONDS: Final = 1000


class AuditRow(NamedTuple):
    """Row for one or more equal decisions of one broker.

    ``time_ms`` is the time of the first decision, ``last_time_ms`` that of the last one. ``decisions`` is their number.
    """

    time_ms: int
    last_time_ms: int
    principal: str
    host: str
    listener: str
    client_id: str
    call: str
    operation: str
    resource_type: str
    resource: str
    allowed: bool
    decisions: int


@dataclass(frozen=True, slots=True)
class AuditBatch:
    """Rows that are written together. With a producer id, the leader appends them once however often they are sent."""

    rows: tuple[AuditRow, ...]
    producer_id: int = NO_PRODUCER_ID
    sequence: int = NO_SEQUENCE

    def unnumbered(self) -> Self:
        """Return the same rows without the producer's numbers."""
        return replace(self, producer_id=NO_PRODUCER_ID, sequence=NO_SEQUENCE)

    @property
    def decisions(self) -> int:
        """The number of decisions in the rows."""
        return sum(row.decisions for row in self.rows)

    def encode(self) -> bytes:
        """Return the content of a file."""
        return json.dumps([self.producer_id, self.sequence, self.rows]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parse the content of a file. Raises ``ValueError``."""
        try:
            producer_id, sequence, rows = json.loads(data)
            return cls(tuple(AuditRow(*row) for row in rows), int(producer_id), int(sequence))
        except TypeError as error:
            raise ValueError(f"these are no rows of the audit: {error}") from None

    def record_batch(self, broker_id: int, schema_id: int) -> bytes:
        """Return the rows as a batch of the topic, whose first schema has ``schema_id``."""
        schema = parse_ddl(AUDIT_COLUMNS)
        fields = zip(AuditRow._fields, zip(*self.rows, strict=True), strict=True)
        columns = {name.removesuffix("_ms"): list(values) for name, values in fields}
        for name in ("time", "last_time"):
            columns[name] = [value * _MICROSECONDS for value in columns[name]]
        columns["broker_id"] = [broker_id] * len(self.rows)
        return build_columnar_batch(
            pa.RecordBatch.from_pydict(columns, schema=schema),
            schema_id=schema_id,
            timestamps_ms=pa.array([row.time_ms for row in self.rows], pa.int64()),
            compression=Compression.ZSTD,
            producer_id=self.producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if self.producer_id == NO_PRODUCER_ID else 0,
            base_sequence=self.sequence,
        )

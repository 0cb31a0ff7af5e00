"""Decoding of key and value batches in a task.

A bad record fails the task, leaves a row whose decoded columns are null, or goes to a topic, as ``badRecords`` says.
The topic acknowledges the bad records of a batch before the batch is passed on. So all bad records of a committed
micro-batch are in the topic. A repeated task sends them again, with the same topic, partition and offset in their
headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from millrace.errors import InvalidRecordError
from millrace.payloads import PayloadDecoder, PayloadSchema
from millrace.schemas import promote
from pyspark_millrace.columns import RAW_KEY, RAW_VALUE, Metadata
from pyspark_millrace.decoding.dead_letters import OFFSET_HEADER, PARTITION_HEADER, REASON_HEADER, TOPIC_HEADER
from pyspark_millrace.decoding.plan import DecodePlan, PartPlan
from pyspark_millrace.options.decoding import BadRecords

if TYPE_CHECKING:
    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.partition_key import PartitionKey

BadRecord = dict[str, Any]
"""``key``, ``value`` and ``headers`` of a record to send."""


class DeadLetters(Protocol):
    """Destination of bad records."""

    def send(self, records: list[BadRecord]) -> None:
        """Send records and wait for their acknowledgement."""


class RowDecoder:
    """Decoder of the batches of one partition."""

    def __init__(
        self,
        plan: DecodePlan,
        schema: pa.Schema,
        partition: PartitionKey,
        schema_of: Callable[[int], PayloadSchema],
        dead_letters: Callable[[], DeadLetters],
    ) -> None:
        """Create a decoder; ``schema`` is the schema of the query's columns."""
        self._plan: Final = plan
        self._schema: Final = schema
        self._partition: Final = partition
        self._value: Final = _decoder(self._plan.value, schema_of)
        self._key: Final = _decoder(self._plan.key, schema_of)
        self._dead_letters: Final = dead_letters

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode a batch of the raw layout. Raises ``InvalidRecordError`` for a bad record with ``badRecords=fail``."""
        columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        faults: dict[int, str] = {}
        if self._key is not None:
            keys = self._key.decode(columns[RAW_KEY])
            faults |= {row: f"key: {text}" for row, text in keys.faults.items()}
            struct = pa.StructArray.from_arrays(
                keys.columns.columns, fields=list(self._key.schema), mask=_missing(columns[RAW_KEY], keys.faults)
            )
        if self._value is not None:
            values = self._value.decode(columns[RAW_VALUE])
            faults = {row: f"value: {text}" for row, text in values.faults.items()} | faults
            columns |= zip(values.columns.schema.names, values.columns.columns, strict=True)
        if faults:
            self._pass(batch, faults)
        if self._key is not None:
            columns[RAW_KEY] = struct
        arrays = [columns[name] for name in self._schema.names]
        cast = [promote(array, each.type) for array, each in zip(arrays, self._schema, strict=True)]
        found = pa.RecordBatch.from_arrays(cast, schema=self._schema)
        if faults and self._plan.bad_records is BadRecords.DEAD_LETTER:
            return found.filter(pa.array([row not in faults for row in range(found.num_rows)]))
        return found

    def _pass(self, batch: pa.RecordBatch, faults: Mapping[int, str]) -> None:
        offsets = batch.column(Metadata.OFFSET.value)
        if self._plan.bad_records is BadRecords.FAIL:
            row = min(faults)
            raise InvalidRecordError(
                f"offset {offsets[row].as_py()} of {self._partition} cannot be decoded: {faults[row]} "
                f"({len(faults)} such records in a batch of {batch.num_rows}): correct decode.*, or set "
                "badRecords=null or badRecords=deadletter:<topic> to go on"
            )
        if self._plan.bad_records is BadRecords.DEAD_LETTER:
            self._dead_letters().send(
                [
                    {
                        "key": batch.column(RAW_KEY)[row].as_py(),
                        "value": batch.column(RAW_VALUE)[row].as_py(),
                        "headers": [
                            *((each["key"], each["value"]) for each in batch.column("__headers")[row].as_py() or ()),
                            (REASON_HEADER, text.encode()),
                            (TOPIC_HEADER, self._partition.topic.encode()),
                            (PARTITION_HEADER, str(self._partition.partition).encode()),
                            (OFFSET_HEADER, str(offsets[row].as_py()).encode()),
                        ],
                    }
                    for row, text in sorted(faults.items())
                ]
            )


def _decoder(part: PartPlan | None, fetch: Callable[[int], PayloadSchema]) -> PayloadDecoder | None:
    if part is None:
        return None
    return PayloadDecoder(part.wanted, part.framing, lambda schema_id: part.known.get(schema_id) or fetch(schema_id))


def _missing(payloads: pa.Array, faults: Mapping[int, str]) -> pa.Array:
    """Return a mask of the rows whose key is null or bad."""
    missing = payloads.is_null()
    if not faults:
        return missing
    return pa.array([gone or row in faults for row, gone in enumerate(missing.to_pylist())])


class _TopicOfDeadLetters:
    """Dead-letter topic with a producer that lives as long as the task."""

    def __init__(self, topic: str, options: SourceOptions, stack: ExitStack) -> None:
        from millrace.clients import Producer

        settings = {**options.client_config, "bootstrap.servers": options.bootstrap_servers}
        self._producer = stack.enter_context(Producer(settings))
        self._topic = topic

    def send(self, records: list[BadRecord]) -> None:
        futures = [
            self._producer.send(self._topic, each["value"], key=each["key"], headers=each["headers"])
            for each in records
        ]
        self._producer.flush()
        for future in futures:
            future.result()


def decoded(
    batches: Iterator[pa.RecordBatch],
    plan: DecodePlan,
    schema: pa.Schema,
    partition: PartitionKey,
    options: SourceOptions,
    schema_of: Callable[[int], PayloadSchema],
) -> Iterator[pa.RecordBatch]:
    """Decode the batches of a task. ``schema_of`` finds schemas that were registered after the query was planned."""
    with ExitStack() as stack:
        made: list[_TopicOfDeadLetters] = []

        def dead_letters() -> DeadLetters:
            assert plan.dead_letter_topic is not None
            if not made:
                made.append(_TopicOfDeadLetters(plan.dead_letter_topic, options, stack))
            return made[0]

        decoder = RowDecoder(plan, schema, partition, schema_of, dead_letters)
        for batch in batches:
            yield decoder.decode(batch)

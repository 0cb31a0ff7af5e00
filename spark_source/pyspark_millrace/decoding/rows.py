"""Batches of keys and values to batches of the query's columns, in a task.

A bad record fails the task, leaves a row whose decoded columns are null, or goes to a topic, as the option says. It is
acknowledged there before the batch that it was in is handed on, so a micro-batch that was committed has all of its bad
records there; a task that is run again sends them again, with the same topic, partition and offset in their headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from millrace.errors import InvalidRecordError
from millrace.payloads import PayloadDecoder, PayloadSchema
from millrace.schemas import promote
from pyspark_millrace.decoding.dead_letters import OFFSET_HEADER, PARTITION_HEADER, REASON_HEADER, TOPIC_HEADER
from pyspark_millrace.decoding.options import BadRecords
from pyspark_millrace.decoding.plan import RAW_KEY, RAW_VALUE, DecodePlan, PartPlan
from pyspark_millrace.reading.columns import Column, Layout, Metadata, raw_columns

if TYPE_CHECKING:
    from pyspark_millrace.options.source import SourceOptions

DeadLetter = dict[str, Any]
"""``key``, ``value`` and ``headers`` of a record to send."""


class DeadLetters(Protocol):
    """Where bad records go."""

    def send(self, records: list[DeadLetter]) -> None:
        """Send records and wait until they are acknowledged."""


def raw_layout(plan: DecodePlan, layout: Layout) -> Layout:
    """What is read of the log for the query's columns: keys, values and metadata as they are."""
    wanted: dict[str, Column] = {}
    available = raw_columns()
    names = [RAW_VALUE, Metadata.OFFSET.value, *(column.name for column in layout.columns)]
    if plan.key is not None or plan.dead_letter_topic is not None:
        names.append(RAW_KEY)
    if plan.dead_letter_topic is not None:
        names += [Metadata.HEADERS.value]
    for name in names:
        if name in available:
            wanted[name] = available[name]
    return Layout(tuple(wanted.values()), is_opaque=True)


class RowDecoder:
    """Decodes the batches of one partition."""

    def __init__(
        self,
        layout: Layout,
        where: tuple[str, int],
        schema_of: Callable[[int], PayloadSchema],
        dead_letters: Callable[[], DeadLetters],
    ) -> None:
        assert layout.decoding is not None
        self._plan: Final = layout.decoding
        self._layout: Final = layout
        self._schema: Final = layout.arrow_schema()
        self._topic, self._partition = where
        self._value: Final = _decoder(self._plan.value, schema_of)
        self._key: Final = _decoder(self._plan.key, schema_of)
        self._dead_letters: Final = dead_letters

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode a batch of the raw layout. Raises ``InvalidRecordError`` for a bad record that is not to be passed."""
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
        arrays = [columns[column.name] for column in self._layout.columns]
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
                f"offset {offsets[row].as_py()} of {self._topic}-{self._partition} cannot be decoded: {faults[row]} "
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
                            (TOPIC_HEADER, self._topic.encode()),
                            (PARTITION_HEADER, str(self._partition).encode()),
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
    """Rows whose key is null, or bad."""
    missing = payloads.is_null()
    if not faults:
        return missing
    return pa.array([gone or row in faults for row, gone in enumerate(missing.to_pylist())])


class _TopicOfDeadLetters:
    """A topic that bad records are sent to, by a producer that lives as long as the task."""

    def __init__(self, topic: str, options: SourceOptions, stack: ExitStack) -> None:
        from millrace.clients import Producer

        settings = {**options.client_config, "bootstrap.servers": options.bootstrap_servers}
        self._producer = stack.enter_context(Producer(settings))
        self._topic = topic

    def send(self, records: list[DeadLetter]) -> None:
        futures = [
            self._producer.send(self._topic, each["value"], key=each["key"], headers=each["headers"])
            for each in records
        ]
        self._producer.flush()
        for future in futures:
            future.result()


def decoded(
    batches: Iterator[pa.RecordBatch],
    layout: Layout,
    where: tuple[str, int],
    options: SourceOptions,
    schema_of: Callable[[int], PayloadSchema],
) -> Iterator[pa.RecordBatch]:
    """Decode the batches of a task; ``schema_of`` finds schemas that were registered after the query was planned."""
    with ExitStack() as stack:
        made: list[_TopicOfDeadLetters] = []

        def dead_letters() -> DeadLetters:
            assert layout.decoding is not None
            assert layout.decoding.dead_letter_topic is not None
            if not made:
                made.append(_TopicOfDeadLetters(layout.decoding.dead_letter_topic, options, stack))
            return made[0]

        decoder = RowDecoder(layout, where, schema_of, dead_letters)
        for batch in batches:
            yield decoder.decode(batch)

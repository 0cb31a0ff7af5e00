"""Command ``millrace produce``, which sends lines, JSON, CSV, Parquet or Arrow."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from millrace.cli.options import BootstrapServer, ClientConfigFile, ClientOptions, client_config, name_value
from millrace.errors import SchemaMismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from millrace.clients import BatchMetadata, Producer, SendFuture, TopicDescription


class InputFormat(StrEnum):
    """Input formats."""

    LINES = "lines"
    RAW = "raw"
    """Same as ``lines``, under the name that ``consume`` uses."""
    HEX = "hex"
    """Lines of hexadecimal digits, two per byte."""
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


_TEXTUAL = (InputFormat.LINES, InputFormat.RAW, InputFormat.HEX)
_BY_SUFFIX = {
    ".json": InputFormat.JSON,
    ".jsonl": InputFormat.JSON,
    ".ndjson": InputFormat.JSON,
    ".csv": InputFormat.CSV,
    ".parquet": InputFormat.PARQUET,
    ".arrow": InputFormat.ARROW,
    ".feather": InputFormat.ARROW,
    ".ipc": InputFormat.ARROW,
}


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send to. It must exist.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File to read. The default is standard input.")
    ] = None,
    input_format: Annotated[
        InputFormat | None,
        typer.Option(
            "--format", "-f", help="Default: by the suffix of the file; without one lines, or JSON for a typed topic."
        ),
    ] = None,
    key_separator: Annotated[str | None, typer.Option(metavar="TEXT", help="Text between key and value.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", metavar="COLUMN", help="Column with the keys, for tables into an opaque topic."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the timestamps. The default is the time of the send."),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", help="Partition of all records.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of records. Repeatable.")
    ] = None,
    transactional_id: Annotated[str | None, typer.Option(metavar="ID", help="Send in one transaction.")] = None,
    compression: Annotated[str | None, typer.Option(help="none, lz4 or zstd.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing at the end.")] = False,
    option: ClientOptions = None,
    producer_property: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="As --option, for users of Kafka's tool.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Send lines, JSON lines, CSV, Parquet or Arrow data to a topic.

    A typed topic takes tables and JSON objects with its columns. An opaque topic takes lines as values. The formats raw
    and lines are the same, and hex is for bytes. An opaque topic also takes JSON objects and tables with the columns
    key, value, headers, timestamp and partition. Tables without a value column are sent as JSON.

    Examples:

      seq 1000 | millrace produce numbers

      millrace produce orders orders.parquet --timestamp ordered_at

      echo '{"id": 1, "city": "Oslo"}' | millrace produce orders

      echo 'k1:hello' | millrace produce greetings --key-separator :
    """
    from millrace.clients import Producer
    from millrace.config.client import ProducerConfig

    options = [*(option or ()), *(producer_property or ())]
    options += [f"compression.type={compression}"] if compression else []
    options += [f"transactional.id={transactional_id}"] if transactional_id else []
    config = client_config(ProducerConfig, bootstrap_server, client_config_file, options)
    with Producer(config) as producer, _open(file) as source:
        description = producer.describe_topic(topic)
        chosen = input_format or _default_format(file, description)
        if chosen in _TEXTUAL and description.schema is not None:
            raise UsageError(f"topic {topic} is typed, and lines have no columns: give JSON, CSV, Parquet or Arrow")
        reader = _Reader(
            description, chosen, key_separator=key_separator, key=key, timestamp=timestamp, headers=header or ()
        )
        started = time.monotonic()
        with _transaction(producer):
            count = _send_all(producer, topic, reader.tables(source, file), partition=partition, timestamps=timestamp)
    if not quiet:
        _print_speed(topic, count, max(time.monotonic() - started, 1e-6))


def _print_speed(topic: str, count: int, seconds: float) -> None:
    sent = f"{count:,} record{'' if count == 1 else 's'} sent to {topic}"
    typer.echo(f"{sent} in {seconds:.1f} s ({count / seconds:,.0f} records/s)", err=True)


@contextlib.contextmanager
def _transaction(producer: Producer) -> Iterator[None]:
    """Send in one transaction if the producer is transactional."""
    if not producer.is_transactional:
        yield
        return
    producer.init_transactions()
    with producer.transaction():
        yield


def _open(file: Path | None) -> BinaryIO:
    if file is None:
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _default_format(file: Path | None, topic: TopicDescription) -> InputFormat:
    plain = InputFormat.LINES if topic.schema is None else InputFormat.JSON
    return plain if file is None else _BY_SUFFIX.get(file.suffix.lower(), plain)


def _send_all(
    producer: Producer, topic: str, tables: Iterator[pa.Table], *, partition: int | None, timestamps: str | None
) -> int:
    """Send tables as they come, with a progress bar; returns the number of acknowledged records.

    Raises the first error of a batch, as soon as it is known.
    """
    from millrace.cli.output import progress

    sent = _Sent()
    count = 0
    started = time.monotonic()
    with progress() as bar:
        task = bar.add_task(f"sending to {topic}", total=None, rate="")
        try:
            for table in tables:
                sent.add(producer.send_table(topic, table, partition=partition, timestamps=timestamps), table.num_rows)
                count += table.num_rows
                rate = f"{count / max(time.monotonic() - started, 1e-6):,.0f}/s"
                bar.update(task, completed=count, rate=rate)
        except SchemaMismatchError as error:
            producer.flush()
            acknowledged = sent.acknowledged()
            if not acknowledged:
                raise
            fate = "which the transaction drops" if producer.is_transactional else "which were sent"
            raise SchemaMismatchError(f"after {acknowledged:,} records, {fate}: {error.message}") from error
        finally:
            producer.flush()
    return sent.acknowledged()


class _Sent:
    """Tables that were sent, in order, until their outcome is known."""

    def __init__(self) -> None:
        self._acknowledged = 0
        self._unknown: deque[tuple[SendFuture[list[BatchMetadata]], int]] = deque()

    def add(self, future: SendFuture[list[BatchMetadata]], rows: int) -> None:
        """Remember a table of so many rows; raises the error of an earlier table or of this one."""
        self._unknown.append((future, rows))
        self.acknowledged()

    def acknowledged(self) -> int:
        """Return the number of acknowledged records; raises the first error. After a flush no table is missing."""
        while self._unknown and self._unknown[0][0].done():
            future, rows = self._unknown.popleft()
            future.result()
            self._acknowledged += rows
        return self._acknowledged


class _Reader:
    """Reader of one input as tables that fit the topic."""

    def __init__(
        self,
        topic: TopicDescription,
        input_format: InputFormat,
        *,
        key_separator: str | None,
        key: str | None,
        timestamp: str | None,
        headers: Sequence[str],
    ) -> None:
        self._topic = topic
        self._format = input_format
        self._separator = key_separator.encode() if key_separator else None
        self._key = key
        self._timestamp = timestamp
        pairs = (name_value(text, "--header") for text in headers)
        self._headers = [(name, value.encode()) for name, value in pairs]
        if key_separator and input_format not in _TEXTUAL:
            raise UsageError("--key-separator is for lines: use --key COLUMN")
        if key and topic.schema is not None:
            raise UsageError(f"--key is for opaque topics: the key of {topic.name} is in its key columns")

    def tables(self, source: BinaryIO, file: Path | None) -> Iterator[pa.Table]:
        """Yield the input's tables. Raises ``SchemaMismatchError`` for input that cannot be read."""
        import pyarrow as pa

        try:
            for table in self._raw(source):
                yield self._with_headers(table if self._topic.schema is not None else self._opaque(table))
        except (pa.ArrowException, OSError) as error:
            name = file or "standard input"
            raise SchemaMismatchError(f"{name} is not readable as {self._format.value}: {error}") from error

    def _raw(self, source: BinaryIO) -> Iterator[pa.Table]:
        import pyarrow as pa

        if self._format in _TEXTUAL:
            yield from map(self._lines, _line_chunks(source))
        elif self._format is InputFormat.JSON:
            yield from self._json(source)
        elif self._format is InputFormat.CSV:
            from millrace.cli.csv_input import csv_tables

            yield from csv_tables(source, self._topic.schema, self._key)
        elif self._format is InputFormat.PARQUET:
            import pyarrow.parquet as pq

            # Read in this thread only, because an Arrow thread that uses a Python file at process exit would abort
            # the process.
            for batch in pq.ParquetFile(source, pre_buffer=False).iter_batches(use_threads=False):
                yield pa.Table.from_batches([batch])
        else:
            for batch in _arrow_batches(source):
                yield pa.Table.from_batches([batch])

    def _lines(self, chunk: tuple[int, bytes]) -> pa.Table:
        import pyarrow as pa

        first_line, data = chunk
        lines = data.split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        if self._separator is None:
            return pa.table({"value": pa.array(self._decoded(lines, first_line), pa.binary())})
        pairs = [line.partition(self._separator) for line in lines]
        for number, (_, separator, _) in enumerate(pairs, start=first_line):
            if not separator:
                raise SchemaMismatchError(f"line {number} has no key separator {self._separator.decode()!r}")
        return pa.table(
            {
                "key": pa.array(self._decoded([pair[0] for pair in pairs], first_line), pa.binary()),
                "value": pa.array(self._decoded([pair[2] for pair in pairs], first_line), pa.binary()),
            }
        )

    def _decoded(self, texts: list[bytes], first_line: int) -> list[bytes]:
        """Return lines as bytes: unchanged, or decoded from hexadecimal digits."""
        if self._format is not InputFormat.HEX:
            return texts
        decoded = []
        for number, text in enumerate(texts, start=first_line):
            try:
                decoded.append(bytes.fromhex(text.decode("ascii", "replace").strip().removeprefix("0x")))
            except ValueError as error:
                raise SchemaMismatchError(f"line {number} is not hexadecimal: {error}") from error
        return decoded

    def _with_headers(self, table: pa.Table) -> pa.Table:
        """Return the table with the headers of ``--header`` for every record."""
        if not self._headers:
            return table
        import pyarrow as pa

        from millrace.records import headers_array

        name = "headers" if self._topic.schema is None else "__headers"
        if name in table.column_names:
            raise UsageError(f"--header: the data already has a column {name}")
        return table.append_column(name, pa.chunked_array([headers_array([self._headers] * table.num_rows)]))

    def _json(self, source: BinaryIO) -> Iterator[pa.Table]:
        from millrace.cli.json_input import opaque_json_table, typed_json_table

        for first_line, data in _line_chunks(source):
            if self._topic.schema is not None:
                yield typed_json_table(data, self._topic.schema, first_line)
            else:
                yield opaque_json_table(data, first_line)

    def _opaque(self, table: pa.Table) -> pa.Table:
        """Convert a table without a value column to JSON values. Keep the columns of ``--key`` and ``--timestamp``."""
        import pyarrow as pa

        for option, name in (("--key", self._key), ("--timestamp", self._timestamp)):
            if name is not None and name not in table.column_names:
                raise UsageError(f"{option} {name}: the data has the columns {', '.join(table.column_names)}")
        if "value" in table.column_names:
            return table if self._key is None else table.rename_columns({self._key: "key"})
        from millrace.cli.output import json_line

        columns = {"value": pa.array([json_line(row) for row in table.to_pylist()], pa.string())}
        if self._timestamp is not None:
            columns[self._timestamp] = table.column(self._timestamp)
        if self._key is not None:
            columns["key"] = table.column(self._key).cast(pa.string())
        return pa.table(columns)


_CHUNK_BYTES = 4 * 2**20


def _line_chunks(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines as they arrive, with the number of the first; typed input is yielded at once."""
    rest, number = b"", 1
    read = getattr(source, "read1", source.read)
    while data := read(_CHUNK_BYTES):
        whole, newline, rest_now = data.rpartition(b"\n")
        if not newline:
            rest += data
            continue
        chunk, rest = rest + whole + newline, rest_now
        yield number, chunk
        number += chunk.count(b"\n")
    if rest:
        yield number, rest


def _arrow_batches(source: BinaryIO) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if source.seekable():
        is_file_format = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file_format:
            reader = pa.ipc.open_file(source)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
            return
    yield from pa.ipc.open_stream(source)

"""A list model of a topic, and the source's readers.

Tests call the readers as Spark does.
"""

import json
import pickle
import uuid

import pyarrow as pa

from millrace.clients import Producer
from pyspark_millrace import DefaultSource
from pyspark_millrace.reading.references import read_reference
from pyspark_millrace.stream import StreamReader

START_MS = 1_700_000_000_000


class Model:
    """A topic and its expected values, by partition and in order."""

    def __init__(self, servers, name, partitions):
        self.servers, self.name = servers, name
        self.rows = {partition: [] for partition in range(partitions)}
        self.producer = Producer({"bootstrap.servers": servers, "batch.size": 1500, "linger.ms": 0})
        self.readers = []

    def append(self, partition, count):
        first = len(self.rows[partition])
        values = [b"%d:%d" % (partition, first + number) + b"." * ((first + number) % 90) for number in range(count)]
        self.rows[partition] += values
        if count:
            table = pa.table({"value": pa.array(values, pa.binary())})
            self.producer.send_table(self.name, table, partition=partition, timestamps=START_MS + first)
            self.producer.flush()

    def expected(self, ranges):
        return [
            (value, partition, offset)
            for partition, (start, end) in sorted(ranges.items())
            for offset, value in enumerate(self.rows[partition][start:end], start)
        ]


class ModelFactory:
    """A factory of topics with models. Small segments and index intervals allow extents within and across files."""

    def __init__(self, servers, admin):
        self._servers, self._admin = servers, admin
        self._models = []

    def __call__(self, partitions, **configs):
        name = f"model-{uuid.uuid4().hex[:8]}"
        small = {"retention.ms": "-1", "segment.bytes": "20000", "index.interval.bytes": "1000"}
        self._admin.create_topic(name, partitions=partitions, configs=small | configs)
        self._models.append(Model(self._servers, name, partitions))
        return self._models[-1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for model in self._models:
            model.producer.close()
            for reader in model.readers:  # hypothesis ends some examples early
                reader.stop()


def source(model, **options):
    """Return the source as Spark creates it, after pickling to another process."""
    made = DefaultSource({"kafka.bootstrap.servers": model.servers, "subscribe": model.name, **options})
    return pickle.loads(pickle.dumps(made)), made.schema()


def rows_of(reader, tasks):
    """Return the rows that the tasks read, each with the state of a new process."""
    rows = []
    # The planning reader stays in its process. Tasks have a reader that never planned.
    unused = pickle.dumps(another(reader))
    for task in tasks:
        for given in pickle.loads(unused).read(pickle.loads(pickle.dumps(task))):
            for batch in resolved(given, reader._options):
                columns = [batch.column(name).to_pylist() for name in ("value", "partition", "offset")]
                rows += zip(*columns, strict=True)
    return rows


def another(reader):
    """Return another reader with the same options and no state."""
    if isinstance(reader, StreamReader):
        return StreamReader(reader._options, lambda: (reader._topics, reader._layout))
    return type(reader)(reader._options, reader._topics, reader._layout)


def resolved(batch, options):
    """Return the batch itself, or the batch to which its references lead."""
    if "reference" not in batch.schema.names:
        yield batch
        return
    for place in batch.to_pylist():
        for read in read_reference(place["reference"], options):
            assert set(read.column("partition").to_pylist()) == {place["partition"]}
            assert read.column("offset")[0].as_py() >= place["offset"]
            yield read


def stream(model, options):
    found, schema = source(model, **options)
    model.readers.append(found.streamReader(schema))
    return model.readers[-1]


def checkpointed(offset):
    """Return offsets after a round trip through the checkpoint."""
    return json.loads(json.dumps(offset))


def batches(reader, start, limit=None):
    """Return all micro-batches up to the end of the log, as Spark creates them with the reader's own limit."""
    limit = limit or reader.getDefaultReadLimit()
    found = []
    while (end := checkpointed(reader.latestOffset(start, limit))) != start:
        found.append(rows_of(reader, reader.partitions(start, end)))
        start = end
    return found

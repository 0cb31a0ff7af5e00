"""The benchmarks' one data set, as JSON and as typed columns.

A record is ``{"word":"w0042","amount":12.05,"ts":1700000000000,"id":0,"pad":"opqr..."}``.

* ``word`` is one of 1000 random words
* ``amount`` is a number of whole cents, below 1000.00
* ``ts`` is a time 0.1 ms after that of the last record
* ``id`` is a running number
* ``pad`` is letters up to exactly 100 bytes

A record is a function of its number alone. So every run and both sides get the same records, in chunks of any size.
With another number of words only the words differ. In Avro the five columns of a record take 55 bytes or one or two
more.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RECORD_BYTES = 100
WORDS = 1000
TIME_START_MS = 1_700_000_000_000
RECORDS_PER_MS = 10

TYPED_SCHEMA = pa.schema(
    [
        pa.field("word", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("ts", pa.int64()),
        pa.field("id", pa.int64()),
        pa.field("pad", pa.string()),
    ]
)
SPARK_DDL = "word string, amount double, ts long, id long, pad string"
_AVRO_FIELDS = {"word": "string", "amount": "double", "ts": "long", "id": "long", "pad": "string"}

_HEAD = '{"word":"'
_TAIL = '"}'
_PAD_END = RECORD_BYTES - len(_TAIL)
_LETTERS = 26
_AMOUNTS = pa.array([f"{cents // 100}.{cents % 100:02d}" for cents in range(100_000)])
# The pad of length n that starts at letter s is at s * _PAD_END + n.
_PADS = pa.array(
    [
        "".join(chr(ord("a") + (start + place) % _LETTERS) for place in range(length))
        for start in range(_LETTERS)
        for length in range(_PAD_END)
    ]
)


@lru_cache(maxsize=1)
def words(count: int) -> pa.Array:
    """Return all words, of that many."""
    return pa.array([f"w{number:04d}" for number in range(count)])


def table(first: int, count: int, word_count: int = WORDS) -> pa.Table:
    """Create records ``first .. first + count - 1`` with the columns of ``TYPED_SCHEMA``.

    Each record also has ``key``, ``value`` and ``timestamp``.
    """
    ids = np.arange(first, first + count, dtype=np.int64)
    random = splitmix64(ids.view(np.uint64))
    word_numbers = (random % np.uint64(word_count)).astype(np.int64)
    cents = ((random >> np.uint64(32)) % np.uint64(len(_AMOUNTS))).astype(np.int64)
    times = TIME_START_MS + ids // RECORDS_PER_MS

    keys = words(word_count).take(pa.array(word_numbers))
    head = pc.binary_join_element_wise(
        pc.binary_join_element_wise(_HEAD, keys, '","amount":', _AMOUNTS.take(pa.array(cents)), ""),
        pc.binary_join_element_wise(',"ts":', pa.array(times).cast(pa.string()), ""),
        pc.binary_join_element_wise(',"id":', pa.array(ids).cast(pa.string()), ',"pad":"', ""),
        "",
    )
    head_lengths = pc.binary_length(head).to_numpy()
    starts = (head_lengths + word_numbers) % _LETTERS
    pads = _PADS.take(pa.array(starts * _PAD_END + (_PAD_END - head_lengths)))
    values = pc.binary_join_element_wise(head, pads, _TAIL, "")
    return pa.table(
        {
            "key": keys.cast(pa.binary()),
            "value": values.cast(pa.binary()),
            "timestamp": pa.array(times),
            "word": keys,
            "amount": pa.array(cents / 100.0),
            "ts": pa.array(times),
            "id": pa.array(ids),
            "pad": pads,
        }
    )


def avro_schema(names: Iterable[str] = TYPED_SCHEMA.names) -> str:
    """Return the Avro schema of a record, or of those fields that a reader wants, as JSON."""
    fields = [{"name": name, "type": _AVRO_FIELDS[name]} for name in names]
    return json.dumps({"type": "record", "name": "Event", "fields": fields})


def with_avro_values(table: pa.Table) -> pa.Table:
    """Return the same records with Avro values, without the frame of a schema registry."""
    import fastavro  # one topic of Kafka's needs it

    schema = fastavro.parse_schema(json.loads(avro_schema()))
    values = []
    for row in table.select(TYPED_SCHEMA.names).to_pylist():
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, row)
        values.append(written.getvalue())
    return table.set_column(table.column_names.index("value"), "value", pa.array(values, pa.binary()))


def tables(records: int, chunk_rows: int = 500_000, *, word_count: int = WORDS) -> Iterator[pa.Table]:
    """Yield all records in order, in tables of at most ``chunk_rows``."""
    for first in range(0, records, chunk_rows):
        yield table(first, min(chunk_rows, records - first), word_count)


def skewed_partitions(table: pa.Table, partitions: int) -> np.ndarray:
    """Return the partition of each record. The first partition has nine tenths, and the others share the rest."""
    ids = table["id"].to_numpy()
    return np.where(ids % 10 < 9, 0, 1 + ids // 10 % (partitions - 1))


def splitmix64(numbers: np.ndarray) -> np.ndarray:
    """Return a well mixed 64-bit number for each (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
    Generators").
    """
    z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

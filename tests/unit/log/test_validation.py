from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config.topic import TopicConfig
from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    MessageTooLargeError,
    MillraceError,
    UnsupportedCompressionError,
)
from millrace.records import HEADER_BYTES, build_columnar_batch, read_header, seal
from millrace_broker.log import ProducedBatches

Batch = Callable[..., bytes]
ANY = TopicConfig()


def altered(batch: bytes, **fields: int) -> bytes:
    """Return the batch with other header fields and a valid checksum."""
    return seal(read_header(batch)._replace(**fields), batch[HEADER_BYTES:])


def test_valid_batches_are_reported_by_position(batch: Batch) -> None:
    one, two = batch([1, 2]), batch([3])
    found = ProducedBatches(one + two, ANY)
    assert [(position, header.count) for position, header in found.headers] == [(0, 2), (len(one), 1)]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"base_offset": 5}, InvalidRecordError, "base offset 5"),
        ({"count": 0, "last_offset_delta": -1}, InvalidRecordError, "at least one"),
        ({"count": 2}, InvalidRecordError, "one offset for each record"),
        ({"last_offset_delta": 3}, InvalidRecordError, "one offset for each record"),
        ({"attributes": 0x20}, InvalidRecordError, "control batch"),
        ({"attributes": 0x10}, InvalidRequestError, "transactional"),
        ({"attributes": 0x40}, InvalidRecordError, "attributes 0x0040"),
        ({"attributes": 0x0080}, InvalidRecordError, "attributes 0x0080"),
        ({"attributes": 0x4080}, InvalidRecordError, "attributes 0x4080"),
        ({"attributes": 0x05}, UnsupportedCompressionError, "rows.*compression 5.*none, gzip, snappy, lz4, zstd"),
        ({"attributes": 0x4001}, UnsupportedCompressionError, "columnar.*gzip.*none, lz4, zstd"),
        ({"attributes": 0x08}, InvalidTimestampError, "append time"),
        ({"producer_id": 7, "producer_epoch": 0}, InvalidRecordError, "no sequence number"),
    ],
)
def test_headers_that_no_producer_sends_are_refused(
    batch: Batch, fields: dict[str, int], error: type[MillraceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        ProducedBatches(altered(batch([1]), **fields), ANY)


def test_a_request_without_batches_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="at least one"):
        ProducedBatches(b"", ANY)


def test_a_batch_beyond_max_message_bytes_is_refused(batch: Batch) -> None:
    sent = batch([1])
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
        ProducedBatches(sent, TopicConfig.load({"max.message.bytes": len(sent) - 1}))
    assert ProducedBatches(sent + sent, TopicConfig.load({"max.message.bytes": len(sent)}))


@pytest.mark.parametrize("tail", [1, 11, 12, 60, 61, -1])
def test_bytes_after_the_last_batch_are_refused(batch: Batch, tail: int) -> None:
    sent = batch([1])
    with pytest.raises(
        InvalidRecordError, match=f"{len(sent[:tail])} bytes at position {len(sent)} are no complete record batch"
    ):
        ProducedBatches(sent + sent[:tail], ANY)
    with pytest.raises(InvalidRecordError, match="at position 0 are no complete record batch"):
        ProducedBatches(sent[:tail], ANY)


def test_batches_of_a_transaction_come_with_its_id(batch: Batch) -> None:
    sent = batch([1], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert ProducedBatches(sent, ANY, in_transaction=True)
    assert ProducedBatches(batch([1]), ANY, in_transaction=True)
    with pytest.raises(InvalidRequestError, match="at position 0 is transactional"):
        ProducedBatches(sent, ANY)


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_known_compressions_are_accepted(batch: Batch, compression: int) -> None:
    assert ProducedBatches(altered(batch([1]), attributes=compression), ANY)


def test_a_delete_horizon_is_set_by_the_cleaner_only(batch: Batch) -> None:
    columnar = bytes(build_columnar_batch(pa.record_batch({"value": [b"a"]}), timestamps_ms=1))
    assert ProducedBatches(columnar, ANY)
    for sent in (columnar, batch([1])):
        attributes = read_header(sent).attributes
        with pytest.raises(InvalidRecordError, match="which producers do not set"):
            ProducedBatches(altered(sent, attributes=attributes | 0x40), ANY)


def test_idempotent_batch_comes_alone(batch: Batch) -> None:
    idempotent = batch([1], producer_id=7, producer_epoch=0, base_sequence=0)
    ProducedBatches(idempotent, ANY)
    for several in (idempotent + batch([2]), batch([2]) + idempotent, idempotent * 2):
        with pytest.raises(InvalidRecordError, match="comes alone"):
            ProducedBatches(several, ANY)


def test_append_time_may_be_claimed_where_it_is_replaced(batch: Batch) -> None:
    config = TopicConfig.load({"message.timestamp.type": "LogAppendTime"})
    assert ProducedBatches(altered(batch([1]), attributes=0x08), config)


@given(bit=st.integers(0), cut=st.booleans())
def test_any_damage_is_refused(bit: int, cut: bool) -> None:
    sound = bytes(build_columnar_batch(pa.record_batch({"value": [b"a", b"b"]}), timestamps_ms=1))
    damaged = bytearray(sound)
    damaged[bit // 8 % len(sound)] ^= 1 << bit % 8
    where = bit // 8 % len(sound)
    if cut:
        damaged = bytearray(sound[:where])
    if not cut and 12 <= where < 16:  # the broker sets the leader epoch, and the checksum does not cover it
        assert ProducedBatches(bytes(damaged), ANY)
        return
    with pytest.raises((CorruptBatchError, InvalidRecordError, InvalidRequestError)):
        ProducedBatches(bytes(damaged), ANY)

"""Tests of hand-written produce requests, which equal those that protobuf writes."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.producing.wire import ProducerStamp, encode_produce_request, stamped_parts
from millrace.protocol import millrace_pb2 as pb
from millrace.records import build_columnar_batch, read_header, verify_crc

_partitions = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.lists(st.binary(max_size=300), max_size=3)), max_size=4)
_topics = st.lists(st.tuples(st.text(max_size=20), _partitions), max_size=3)


@given(st.sampled_from([-1, 0, 1]), st.integers(0, 2**31 - 1), _topics)
def test_requests_are_read_back_by_protobuf(
    acks: int, timeout_ms: int, topics: list[tuple[str, list[tuple[int, list[bytes]]]]]
) -> None:
    request = pb.ProduceRequest.FromString(encode_produce_request(acks, timeout_ms, topics))
    assert (request.acks, request.timeout_ms) == (acks, timeout_ms)
    found = [
        (topic.name, [(partition.partition, partition.records) for partition in topic.partitions])
        for topic in request.topics
    ]
    assert found == [(name, [(number, b"".join(parts)) for number, parts in inner]) for name, inner in topics]


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.binary(max_size=2000))
def test_a_stamped_batch_is_whole(producer_id: int, epoch: int, sequence: int, value: bytes) -> None:
    batch = build_columnar_batch(pa.record_batch({"value": pa.array([value], pa.binary())}), timestamps_ms=1)
    stamped = b"".join(stamped_parts(batch, ProducerStamp(producer_id, epoch, sequence)))
    header = read_header(stamped)
    verify_crc(stamped, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, epoch, sequence)
    assert stamped[61:] == batch[61:]
    assert b"".join(stamped_parts(batch, None)) == batch


@given(st.binary(max_size=2000))
def test_a_batch_gets_its_checksum_when_it_is_sent(value: bytes) -> None:
    columns = pa.record_batch({"value": pa.array([value], pa.binary())})
    built = build_columnar_batch(columns, timestamps_ms=1, with_checksum=False)
    assert read_header(built).crc == 0
    assert b"".join(stamped_parts(built, None)) == build_columnar_batch(columns, timestamps_ms=1)

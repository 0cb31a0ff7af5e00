from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import StorageError
from millrace.records import checksum
from millrace_broker.log.producer_snapshots import read_snapshot, write_snapshot
from millrace_broker.log.producer_states import ProducedBatch, ProducerEntry

int32 = st.integers(0, 2**31 - 1)
int63 = st.integers(0, 2**62)


@st.composite
def entries(draw: st.DrawFn) -> ProducerEntry:
    time_ms = draw(int63)
    batch = ProducedBatch(
        last_sequence=draw(int32), last_offset=draw(int63), offset_delta=draw(int32), timestamp_ms=time_ms
    )
    return ProducerEntry(
        producer_id=draw(int63),
        epoch=draw(st.integers(0, 2**15 - 1)),
        batches=draw(st.sampled_from([(), (batch,)])),
        last_timestamp_ms=time_ms,
        coordinator_epoch=draw(st.integers(-1, 2**31 - 1)),
        open_transaction_offset=draw(st.none() | int63),
    )


@given(st.lists(entries(), max_size=5))
def test_snapshots_are_read_as_they_were_written(written: list[ProducerEntry]) -> None:
    assert read_snapshot(write_snapshot(written)) == written


@pytest.mark.parametrize("announced", [-1, 0, 2])
def test_the_announced_number_of_producers_is_that_of_the_entries(announced: int) -> None:
    snapshot = write_snapshot([ProducerEntry(producer_id=7)])
    body = announced.to_bytes(4, "big", signed=True) + snapshot[10:]
    with pytest.raises(StorageError, match=f"announces {announced} producers"):
        read_snapshot(snapshot[:2] + checksum(body).to_bytes(4, "big") + body)


@given(st.lists(entries(), max_size=3), st.data())
def test_any_damage_is_noticed(written: list[ProducerEntry], data: st.DataObject) -> None:
    snapshot = bytearray(write_snapshot(written))
    bit = data.draw(st.integers(0, 8 * len(snapshot) - 1))
    snapshot[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StorageError, match="producer snapshot"):
        read_snapshot(bytes(snapshot))
    with pytest.raises(StorageError, match="producer snapshot"):
        read_snapshot(bytes(snapshot[: data.draw(st.integers(0, len(snapshot) - 1))]))

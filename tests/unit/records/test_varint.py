from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records.varint import read_varint, varint_size, write_varint


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_varints_read_back(value: int, before: bytes, after: bytes) -> None:
    written = write_varint(value)
    assert len(written) == varint_size(value) <= 5
    assert read_varint(before + written + after, len(before)) == (value, len(before) + len(written))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_read_back(value: int) -> None:
    written = write_varint(value)
    assert len(written) == varint_size(value) <= 10
    assert read_varint(written, 0, 64) == (value, len(written))


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-(2**31), "ffffffff0f")],
)
def test_encodings_are_those_of_the_protocol(value: int, written: str) -> None:
    assert write_varint(value).hex() == written


def test_longer_encodings_than_needed_are_accepted_up_to_the_types_width() -> None:
    assert read_varint(bytes.fromhex("8280808000"), 0) == (1, 5)
    with pytest.raises(CorruptBatchError, match="too long"):
        read_varint(bytes.fromhex("828080808000"), 0)
    assert read_varint(bytes.fromhex("82808080808080808000"), 0, 64) == (1, 10)
    with pytest.raises(CorruptBatchError, match="too long"):
        read_varint(bytes.fromhex("8280808080808080808000"), 0, 64)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("data", ["", "82", "8280", "ffff"])
def test_an_integer_that_the_data_cut_off_is_corrupt(bits: int, data: str) -> None:
    with pytest.raises(CorruptBatchError, match="end within an integer"):
        read_varint(b"before" + bytes.fromhex(data), 6, bits)


@pytest.mark.parametrize("size", range(1, 11))
def test_an_integer_of_every_size_is_read(size: int) -> None:
    largest = 2 ** (7 * size - 1) - 1 if size < 10 else 2**63 - 1
    for value in (largest, -largest - 1):
        assert len(write_varint(value)) == varint_size(value) == size
        assert read_varint(write_varint(value), 0, 64) == (value, size)
        if size < 5:
            assert read_varint(write_varint(value), 0) == (value, size)


def test_bits_beyond_the_width_are_dropped() -> None:
    assert read_varint(bytes.fromhex("828080807f"), 0)[0] == read_varint(bytes.fromhex("828080800f"), 0)[0]


@given(st.binary(max_size=12))
def test_any_bytes_give_an_integer_or_an_error(data: bytes) -> None:
    for width in (32, 64):
        try:
            value, end = read_varint(data, 0, width)
        except CorruptBatchError:
            continue
        assert -(2 ** (width - 1)) <= value < 2 ** (width - 1)
        assert 0 < end <= len(data)

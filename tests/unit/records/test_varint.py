from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records.varint import read_varint, read_varlong, varint_size, write_varint


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_varints_read_back(value: int, before: bytes, after: bytes) -> None:
    written = write_varint(value)
    assert len(written) == varint_size(value) <= 5
    assert read_varint(before + written + after, len(before)) == (value, len(before) + len(written))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_read_back(value: int) -> None:
    written = write_varint(value)
    assert len(written) == varint_size(value) <= 10
    assert read_varlong(written, 0) == (value, len(written))


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
    assert read_varlong(bytes.fromhex("82808080808080808000"), 0) == (1, 10)
    with pytest.raises(CorruptBatchError, match="too long"):
        read_varlong(bytes.fromhex("8280808080808080808000"), 0)


def test_bits_beyond_the_width_are_dropped() -> None:
    assert read_varint(bytes.fromhex("828080807f"), 0)[0] == read_varint(bytes.fromhex("828080800f"), 0)[0]


@given(st.binary(max_size=12))
def test_any_bytes_give_an_integer_or_an_error(data: bytes) -> None:
    for read, width in ((read_varint, 32), (read_varlong, 64)):
        try:
            value, end = read(data, 0)
        except CorruptBatchError:
            continue
        assert -(2 ** (width - 1)) <= value < 2 ** (width - 1)
        assert 0 < end <= len(data)

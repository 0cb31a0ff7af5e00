"""Frames are read as they were written, and what is none is refused by name."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidRequestError, UnsupportedVersionError
from millrace.protocol import frames

_NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=255).map(str.encode)


@given(_NAMES, st.integers(0, 2**31), st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_a_request_is_read_as_it_was_written(name: bytes, size: int, deadline_ms: int, before: bytes) -> None:
    head = frames.request_head(name, size, deadline_ms)
    assert frames.read_request_head(before + head, len(before)) == (deadline_ms, len(name), size)
    assert head[frames.REQUEST_HEAD_BYTES :] == name
    assert int.from_bytes(head[:4], "big") == len(head) - 4 + size


@given(st.integers(0, 2**31), st.integers(-1, 2000), st.sampled_from(frames.Kind))
def test_a_response_is_read_as_it_was_written(size: int, error: int, kind: frames.Kind) -> None:
    head = frames.response_head(size, error, kind)
    assert len(head) == frames.RESPONSE_HEAD_BYTES
    assert frames.read_response_head(memoryview(head)) == (kind, error, size)


@pytest.mark.parametrize(("asked_ms", "sent_ms"), [(-5, 0), (2**40, 2**32 - 1)])
def test_deadlines_are_the_nearest_that_can_be_said(asked_ms: int, sent_ms: int) -> None:
    assert frames.read_request_head(frames.request_head(b"Fetch", 0, asked_ms)).deadline_ms == sent_ms


@pytest.mark.parametrize(("name", "size"), [(b"x" * 256, 0), (b"Fetch", 2**32 - 9)])
def test_what_fits_into_no_frame_is_not_written(name: bytes, size: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        frames.request_head(name, size)


def test_a_greeting_is_known() -> None:
    assert len(frames.greeting()) == frames.GREETING_BYTES
    frames.check_greeting(frames.greeting())


@pytest.mark.parametrize(
    "other", [b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00" + bytes(20)]
)
def test_other_protocols_are_refused(other: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="another protocol"):
        frames.check_greeting(other)


def test_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 2 there and 1 here"):
        frames.check_greeting(struct.pack(">9sH", frames.MAGIC, 2))


@pytest.mark.parametrize("head", [struct.pack(">IIB", 0, 0, 0), struct.pack(">IIB", 6, 0, 2)])
def test_a_length_that_holds_no_request_is_refused(head: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="cannot hold"):
        frames.read_request_head(head)


@given(st.binary(min_size=frames.REQUEST_HEAD_BYTES, max_size=frames.REQUEST_HEAD_BYTES))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    try:
        head = frames.read_request_head(data)
    except InvalidRequestError:
        return
    assert head.message_bytes >= 0
    assert head.message_bytes + head.name_bytes < 2**32


@given(st.binary(min_size=frames.RESPONSE_HEAD_BYTES, max_size=frames.RESPONSE_HEAD_BYTES))
def test_any_bytes_are_a_response_or_refused(data: bytes) -> None:
    try:
        head = frames.read_response_head(data)
    except InvalidRequestError:
        return
    assert frames.response_head(head.body_bytes, head.error, head.kind) == data

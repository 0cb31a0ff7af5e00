"""Tests of frames.

The tests cover round trips, and refusals of bytes that are no frame.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidRequestError, UnsupportedVersionError
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.protocol import frames
from millrace_broker.api import HANDLERS

_KEYS = st.sampled_from([frames.HELLO, *frames.API_KEYS.values()])
_INT32 = st.integers(-(2**31), 2**31 - 1)


def read(rest: bytes) -> tuple[str | None, int, bytes]:
    """Return client id, deadline in ms and message of a request after its head."""
    client_id, position = frames.read_client_id(rest)
    deadline_ms, message = frames.read_rest(rest, position)
    return client_id, deadline_ms, bytes(message)


@given(_KEYS, st.binary(max_size=20), st.integers(0, 2**32 - 1), _INT32, st.binary(max_size=20))
def test_a_request_is_read_as_it_was_written(
    api_key: int, message: bytes, deadline_ms: int, correlation_id: int, before: bytes
) -> None:
    data = frames.request_head(api_key, len(message), deadline_ms, correlation_id=correlation_id) + message
    head = frames.read_head(before + data, len(before))
    assert head[:3] == (api_key, frames.VERSION, correlation_id)
    assert len(data) == frames.HEAD_BYTES + head.rest_bytes
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert read(data[frames.HEAD_BYTES :]) == (None, deadline_ms, message)


@given(_KEYS, _INT32, st.none() | st.text(max_size=40), st.integers(0, 2**32 - 1), st.binary(max_size=20))
def test_a_request_begins_with_a_request_header_of_kafka(
    api_key: int, correlation_id: int, client_id: str | None, deadline_ms: int, message: bytes
) -> None:
    header = RequestHeader(
        request_api_key=api_key,
        request_api_version=frames.VERSION,
        correlation_id=correlation_id,
        client_id=client_id,
    ).encode(1)
    data = header + struct.pack(">I", deadline_ms) + message
    head = frames.read_head(struct.pack(">i", len(data)) + data)
    assert head == (api_key, frames.VERSION, correlation_id, len(data) - 8)
    assert read(data[8:]) == (client_id, deadline_ms, message)


def test_every_call_has_an_api_key_that_kafka_will_not_use() -> None:
    assert set(HANDLERS) == set(frames.API_KEYS)
    keys = [frames.HELLO, *frames.API_KEYS.values()]
    assert len(set(keys)) == len(keys)
    assert all(frames.OWN_KEYS_MIN <= key < 2**15 for key in keys)


def test_api_keys_never_change() -> None:
    assert [frames.API_KEYS[name] for name in ("ApiVersions", "Produce", "Fetch", "ControlledShutdown")] == [
        20_001,
        20_014,
        20_015,
        20_055,
    ]


@given(st.integers(0, 2**31 - 11), st.integers(-1, 2000), st.sampled_from(frames.Kind), st.integers(0, 2**31 - 1))
def test_a_response_is_read_as_it_was_written(size: int, error: int, kind: frames.Kind, correlation_id: int) -> None:
    head = frames.response_head(size, error, kind, correlation_id=correlation_id)
    assert len(head) == frames.RESPONSE_HEAD_BYTES
    assert frames.read_response_head(memoryview(head), correlation_id) == (kind, error, size)
    if kind is frames.Kind.ANSWER:
        with pytest.raises(InvalidRequestError, match="another protocol"):
            frames.read_response_head(head, correlation_id ^ 1)


@pytest.mark.parametrize(("asked_ms", "sent_ms"), [(-5, 0), (2**40, 2**32 - 1)])
def test_deadlines_are_rounded_to_the_nearest_encodable_one(asked_ms: int, sent_ms: int) -> None:
    data = frames.request_head(frames.HELLO, 0, asked_ms)
    assert read(data[frames.HEAD_BYTES :])[1] == sent_ms


def test_a_message_too_large_for_a_frame_is_not_written() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        frames.request_head(frames.HELLO, 2**31 - 13)


def test_another_version_is_refused() -> None:
    frames.check_version(frames.VERSION)
    with pytest.raises(UnsupportedVersionError, match="version 2 there and 1 here"):
        frames.check_version(2)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 7])
def test_a_length_that_holds_no_request_is_refused(length: int) -> None:
    with pytest.raises(InvalidRequestError, match="cannot hold"):
        frames.read_head(struct.pack(">ihhi", length, 0, 0, 0))


@given(st.binary(max_size=40))
def test_any_bytes_are_the_rest_of_a_request_or_refused(data: bytes) -> None:
    try:
        message = read(data)[2]
    except InvalidRequestError:
        return
    assert data.endswith(message)


@given(st.binary(min_size=frames.RESPONSE_HEAD_BYTES, max_size=frames.RESPONSE_HEAD_BYTES))
def test_any_bytes_are_a_response_or_refused(data: bytes) -> None:
    try:
        head = frames.read_response_head(data)
    except InvalidRequestError:
        return
    assert frames.response_head(head.body_bytes, head.error, head.kind) == data

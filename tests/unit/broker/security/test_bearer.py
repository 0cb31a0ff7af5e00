"""Tests of messages of OAUTHBEARER.

The parser finds the token, and a hostile message costs only linear time.
"""

from __future__ import annotations

import pytest

from millrace_broker.security.sasl import _BEARER


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer a.b-c\x01\x01",
        b"n,a=alice,\x01host=here\x01port=9092\x01auth=bearer  a.b-c\x01\x01",
        b"n,,\x01authority=x\x01auth=Bearer a.b-c\x01traceId=1\x01\x01",
    ],
)
def test_the_token_is_found_among_extensions(message: bytes) -> None:
    found = _BEARER.fullmatch(message)
    assert found is not None
    assert found["token"] == b"a.b-c"


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic a\x01auth=Bearer a\x01\x01",
        b"n,,\x01host=here\x01\x01",
    ],
)
def test_a_malformed_message_is_refused(message: bytes) -> None:
    assert _BEARER.fullmatch(message) is None


@pytest.mark.parametrize(
    "filling", [b"auth=Bearer a\x01" * 2**17, b"host=a\x01" * 2**18, b"auth=Bearer" + b" " * 2**21, b"a" * 2**21]
)
def test_a_long_message_without_its_end_is_refused_in_linear_time(filling: bytes) -> None:
    """In quadratic time, a message of this size takes longer than the limit of a test."""
    assert _BEARER.fullmatch(b"n,,\x01" + filling + b"x") is None

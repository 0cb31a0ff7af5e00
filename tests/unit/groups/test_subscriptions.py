"""Tests of what a coordinator reads in the subscriptions of consumers."""

from __future__ import annotations

from typing import Final

import pytest

from millrace_broker.groups.subscriptions import topics_of

_TOPICS: Final = b"\0\0\0\2" + b"\0\1t" + b"\0\1u"
_NO_USER_DATA: Final = b"\xff\xff\xff\xff"


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_topics_are_those_of_version_0_which_begins_each_version(version: int) -> None:
    """Clients exist that send a later version without its fields, and Kafka's coordinator does not read these."""
    assert topics_of(version.to_bytes(2) + _TOPICS + _NO_USER_DATA) == frozenset("tu")


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1", b"\0\1\0\0\0\2\0\1t", b"\xff\xff" + _TOPICS + _NO_USER_DATA])
def test_malformed_subscriptions_have_no_topics(data: bytes) -> None:
    assert topics_of(data) is None

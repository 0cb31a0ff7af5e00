"""Tests of the classes and header versions by API key."""

from __future__ import annotations

import pytest

from millrace.errors import UnsupportedVersionError
from millrace.kafka_protocol.calls.table import VERSIONS, ApiKey
from millrace.kafka_protocol.lookup import (
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)


def test_each_call_has_a_request_and_a_response_of_the_same_versions() -> None:
    for call in ApiKey:
        request, response = request_class(call), response_class(call)
        assert request.API_KEY == response.API_KEY == call
        assert (request.VERSION_MIN, request.VERSION_MAX) == (response.VERSION_MIN, response.VERSION_MAX)
        assert VERSIONS[call] == range(request.VERSION_MIN, request.VERSION_MAX + 1)
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix("Response")


@pytest.mark.parametrize(
    ("api_key", "version", "request_header", "response_header"),
    [
        (ApiKey.PRODUCE, 8, 1, 0),
        (ApiKey.PRODUCE, 9, 2, 1),
        (ApiKey.API_VERSIONS, 0, 1, 0),
        (ApiKey.API_VERSIONS, 4, 2, 0),
        (ApiKey.SASL_HANDSHAKE, 1, 1, 0),
    ],
)
def test_each_version_of_a_call_has_kafkas_header_versions(
    api_key: int, version: int, request_header: int, response_header: int
) -> None:
    assert request_header_version(api_key, version) == request_header
    assert response_header_version(api_key, version) == response_header


def test_an_unknown_api_key_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="unknown API key 4711"):
        request_class(4711)

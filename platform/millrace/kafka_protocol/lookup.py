"""Message classes and header versions of a call, by its API key.

The module of a call is imported at its first use, because all modules together take a third of a second.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from millrace.errors import UnsupportedVersionError
from millrace.kafka_protocol.calls.table import NAMES, ApiKey
from millrace.kafka_protocol.message import Message


@cache
def request_class(api_key: int) -> type[Message]:
    """Return the class of a call's requests. Raises ``UnsupportedVersionError`` for an unknown API key."""
    return _class_of(api_key, "Request")


@cache
def response_class(api_key: int) -> type[Message]:
    """Return the class of a call's responses. Raises ``UnsupportedVersionError`` for an unknown API key."""
    return _class_of(api_key, "Response")


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of the header of a request. Raises ``UnsupportedVersionError`` for an unknown API key."""
    return 2 if version in request_class(api_key).FLEXIBLE else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the version of the header of a response. Raises ``UnsupportedVersionError`` for an unknown API key.

    A client reads the response of ApiVersions before it knows which versions the broker has. Its header is therefore
    never flexible (KIP-511).
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if version in response_class(api_key).FLEXIBLE else 0


def _class_of(api_key: int, suffix: str) -> type[Message]:
    try:
        call = ApiKey(api_key)
    except ValueError:
        raise UnsupportedVersionError(f"unknown API key {api_key}: the broker has no such call") from None
    module = import_module(f"millrace.kafka_protocol.calls.{call.name.lower()}")
    found: type[Message] = getattr(module, NAMES[call] + suffix)
    return found

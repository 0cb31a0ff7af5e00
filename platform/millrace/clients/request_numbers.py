"""Numbers of requests that are outside the range of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.errors import UsageError


@contextmanager
def numbers_checked() -> Iterator[None]:
    """Raise ``UsageError`` for a number that the request of the decorated method cannot hold.

    Kafka's types limit the numbers: partitions and brokers have 32 bits, offsets and producer ids 64.
    """
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("Value out of range"):  # the message of protobuf
            raise
        raise UsageError(f"a number is too large or too small for the request: {error}") from None

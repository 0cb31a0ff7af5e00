from __future__ import annotations

from typing import Any

import grpc
import pytest

from millrace import errors
from millrace.protocol.status import ERROR_CODE_KEY, error_from_rpc, status_of


class _Failed(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str | None, metadata: Any = None) -> None:
        super().__init__()
        self.code = lambda: code
        self.details = lambda: details
        self.trailing_metadata = lambda: metadata


@pytest.mark.parametrize("cls", errors._BY_CODE.values())
def test_every_error_comes_out_as_what_it_went_in_as(cls: type[errors.MillraceError]) -> None:
    error = cls("the message")
    failed = _Failed(status_of(error), error.message, ((ERROR_CODE_KEY, str(error.code)), ("other", "x")))
    received = error_from_rpc(failed)
    assert type(received) is cls
    assert received.message == "the message"


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", errors.BrokerUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.RequestTimedOutError),
        (grpc.StatusCode.CANCELLED, "CANCELLED", errors.RequestTimedOutError),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found", errors.UnsupportedVersionError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max", errors.MessageTooLargeError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pings", errors.ThrottledError),
        (grpc.StatusCode.DATA_LOSS, None, errors.UnknownServerError),
    ],
)
def test_a_failure_outside_of_handlers_is_reported_by_its_status(
    code: grpc.StatusCode, details: str | None, expected: type[errors.MillraceError]
) -> None:
    received = error_from_rpc(_Failed(code, details))
    assert type(received) is expected
    assert code.name in received.message or received.message == details


def test_errors_not_listed_are_the_callers_mistake() -> None:
    assert status_of(errors.InvalidTopicError("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert status_of(errors.SchemaMismatchError("x")) is grpc.StatusCode.INVALID_ARGUMENT

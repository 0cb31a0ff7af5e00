"""Conversion of exceptions to errors that clients may see.

An error belongs to a whole request, or to one item of a response.
"""

from __future__ import annotations

import logging

from millrace.coordination import ConnectionLossError, SessionExpiredError
from millrace.errors import MillraceError, RequestTimedOutError, UnknownServerError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.request_context import in_progress

_logger = logging.getLogger(__name__)


def known_error(error: Exception) -> MillraceError:
    """Return the error as a client may see it. Log an unexpected exception with its stack, and hide its details."""
    if isinstance(error, (ConnectionLossError, SessionExpiredError)):
        return RequestTimedOutError(
            f"the broker lost its connection to ZooKeeper ({error}): check the outcome before a retry"
        )
    if isinstance(error, MillraceError):
        return error
    _logger.error("unexpected failure in %s", in_progress.get() or "the broker's own work", exc_info=error)
    return UnknownServerError(f"the broker failed unexpectedly ({type(error).__name__}): its log has the stack trace")


def error_message(error: Exception) -> pb.Error:
    """Convert the error to the message for one item of a response."""
    known = known_error(error)
    return pb.Error(code=known.code, message=known.message)

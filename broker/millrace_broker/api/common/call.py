"""Context of a call besides its request, and the reporting of item errors."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass, field

from millrace.coordination import ConnectionLossError, SessionExpiredError
from millrace.errors import MillraceError, RequestTimedOutError, UnknownServerError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.quotas import Lease

_logger = logging.getLogger(__name__)

in_progress: ContextVar[str] = ContextVar("in_progress", default="the broker's own work")
"""Description of the call that a task works for, used in the log.

The listener sets it; tasks started by a handler inherit it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Context of one call.

    ``is_local`` is true if the caller is on this host. ``response_lease`` accounts for the bytes of the response.
    """

    peer: str
    is_local: bool
    response_lease: Lease = field(repr=False)


def known_error(error: Exception) -> MillraceError:
    """Return the error as a client may see it. Log an unexpected exception with its stack, and hide its details."""
    if isinstance(error, (ConnectionLossError, SessionExpiredError)):
        return RequestTimedOutError(
            f"the broker lost its connection to ZooKeeper ({error}): check the outcome before a retry"
        )
    if isinstance(error, MillraceError):
        return error
    _logger.error("unexpected failure in %s", in_progress.get(), exc_info=error)
    return UnknownServerError(f"the broker failed unexpectedly ({type(error).__name__}): its log has the stack trace")


def error_message(error: Exception) -> pb.Error:
    """Convert the error to the message for one item of a response."""
    known = known_error(error)
    return pb.Error(code=known.code, message=known.message)

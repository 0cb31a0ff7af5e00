"""What a handler knows of the call besides its request, and how errors of single items are reported."""

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
"""Which call a task works for, in words for the log. The listener sets it; tasks that a handler starts inherit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call. ``is_local`` says that the caller is on this host; ``response_lease`` counts the response's bytes."""

    peer: str
    is_local: bool
    response_lease: Lease = field(repr=False)


def known_error(error: Exception) -> MillraceError:
    """The error as a client may see it: one of ours as it is, anything else logged with its stack and hidden."""
    if isinstance(error, (ConnectionLossError, SessionExpiredError)):
        return RequestTimedOutError(
            f"the broker has lost sight of ZooKeeper, whether this happened is unknown: {error}"
        )
    if isinstance(error, MillraceError):
        return error
    _logger.error("unexpected failure in %s", in_progress.get(), exc_info=error)
    return UnknownServerError(f"the broker failed unexpectedly ({type(error).__name__}): its log has the stack trace")


def error_message(error: Exception) -> pb.Error:
    """The error to stand beside an item of a response."""
    known = known_error(error)
    return pb.Error(code=known.code, message=known.message)

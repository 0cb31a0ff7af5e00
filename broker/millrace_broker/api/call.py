"""What a handler knows of the call besides its request, and how errors of single items are reported."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from millrace.errors import MillraceError, UnknownServerError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.limits import Lease

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call. ``is_local`` says that the caller is on this host; ``response_lease`` counts the response's bytes."""

    peer: str
    is_local: bool
    response_lease: Lease = field(repr=False)


def known_error(error: Exception) -> MillraceError:
    """The error as a client may see it: one of ours as it is, anything else logged with its stack and hidden."""
    if isinstance(error, MillraceError):
        return error
    _logger.error("unexpected failure", exc_info=error)
    return UnknownServerError(f"the broker failed unexpectedly ({type(error).__name__}): its log has the stack trace")


def error_message(error: Exception) -> pb.Error:
    """The error to stand beside an item of a response."""
    known = known_error(error)
    return pb.Error(code=known.code, message=known.message)

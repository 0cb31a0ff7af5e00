"""Quotas at the end of a call: what it has used is counted, and its response says for how long to wait."""

from __future__ import annotations

from typing import Any

from millrace.protocol.fetch_response import FetchAnswer
from millrace_broker.api.common.request_context import RequestContext

_FIELD = "throttle_time_ms"


def settle(response: Any, context: RequestContext) -> int:
    """Count a call. Return the milliseconds for which its client is throttled; 0 without a quota."""
    if context.usage is None:
        return 0
    chunk = getattr(response, "records", None)  # of a range, for which the lease is that of the largest chunk
    return context.usage.settle(context.api_name, context.response_lease.held_bytes if chunk is None else len(chunk))


def throttle(response: Any, context: RequestContext) -> None:
    """Count a call of millrace, and set ``throttle_time_ms`` in a response that has it."""
    throttle_ms = settle(response, context)
    if throttle_ms and (isinstance(response, FetchAnswer) or _FIELD in response.DESCRIPTOR.fields_by_name):
        response.throttle_time_ms = throttle_ms

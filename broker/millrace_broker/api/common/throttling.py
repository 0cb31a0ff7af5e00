"""Quotas at the end of a call.

The resources that the call has used are counted. Its response says for how long the client has to wait.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from millrace.protocol.fetch_response import FetchAnswer
from millrace_broker.api.common.request_context import RequestContext

_FIELD: Final = "throttle_time_ms"


def settle(response: Any, context: RequestContext) -> int:
    """Count a call. Return the milliseconds for which its client is throttled; 0 without a quota.

    A call without a response, because it has failed or wants none, has sent no records.
    """
    if context.usage is None:
        return 0
    chunk = getattr(response, "records", None)  # of a range, for which the lease is that of the largest chunk
    sent_bytes = context.response_lease.held_bytes if chunk is None else len(chunk)
    return context.usage.settle(context.api_name, 0 if response is None else sent_bytes)


async def throttled(work: Awaitable[Any], context: RequestContext) -> Any:
    """Run a call of millrace and count it, also if it fails. Set ``throttle_time_ms`` in a response that has it."""
    response: Any = None
    try:
        response = await work
    finally:
        throttle_ms = settle(response, context)
    if throttle_ms and (isinstance(response, FetchAnswer) or _FIELD in response.DESCRIPTOR.fields_by_name):
        response.throttle_time_ms = throttle_ms
    return response

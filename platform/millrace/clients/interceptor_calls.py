"""Calls of a client's interceptors (KIP-42), whose exceptions never reach the client."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def call_interceptor(method: Callable[..., Any], *arguments: Any, otherwise: Any = None) -> Any:
    """Return the result of an interceptor's method. Log its exception, and return ``otherwise`` in its place."""
    try:
        return method(*arguments)
    except Exception:
        logger.exception("interceptor %s failed", getattr(method, "__qualname__", method))
        return otherwise

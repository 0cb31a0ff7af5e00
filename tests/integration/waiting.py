"""Waiting in tests: for a condition, with a deadline that only a fault reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(is_true: Callable[[], Any], timeout_s: float = 60) -> None:
    """Wait until something is true, and fail if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)

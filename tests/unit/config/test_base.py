"""Tests of the base of all configurations."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import Field

from millrace.config.base import Config

_THREADS = 8


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_use_a_configuration_for_the_first_time_each_get_its_values() -> None:
    for number in range(20):

        class Parent(Config):
            linger_ms: int = Field(0, ge=0)

        class Child(Parent):
            batch_size: int = Field(1, ge=1)

        together = threading.Barrier(_THREADS)

        def load(kind: type[Config] = Child, value: int = number, together: threading.Barrier = together) -> Config:
            together.wait()
            return kind.load({"linger.ms": str(value), "batch.size": "7"})

        with ThreadPoolExecutor(_THREADS) as threads:
            found = [future.result() for future in [threads.submit(load) for _ in range(_THREADS)]]
        assert found == [Child(linger_ms=number, batch_size=7)] * _THREADS

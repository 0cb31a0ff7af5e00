"""Tests of the number of processors.

Some systems, such as macOS, lack Linux's calls.
"""

import os
import sys

import pytest

from millrace.processors import processor_count

from ..integration.waiting import run_to_end


def test_processors_are_those_of_the_process() -> None:
    assert processor_count() == len(os.sched_getaffinity(0))


def test_processors_are_those_of_the_machine_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processor_count() == os.cpu_count()


def test_clients_are_imported_on_systems_without_calls_of_linux() -> None:
    program = "import os, select; del os.sched_getaffinity, os.eventfd, select.epoll; import millrace.clients"
    done = run_to_end([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr

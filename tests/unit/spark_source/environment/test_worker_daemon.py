"""Tests of the worker daemon.

All workers start ready. A worker ends silently when Spark closes its connection, and reports any other failure.
"""

import socket
import subprocess
import sys

import pytest

from pyspark_millrace.environment import worker_daemon


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_closed_connection_only_ends_the_worker(monkeypatch, error):
    def hung_up(sock, authenticated):
        raise error

    monkeypatch.setattr(worker_daemon, "_pyspark_worker", hung_up)
    with socket.socket() as connection:
        assert worker_daemon.worker(connection, True) == 1


def test_other_failures_are_reported_unchanged(monkeypatch):
    def failing(sock, authenticated):
        if authenticated:
            raise OSError("disk full")
        return 3

    monkeypatch.setattr(worker_daemon, "_pyspark_worker", failing)
    with socket.socket() as connection:
        assert worker_daemon.worker(connection, False) == 3
        with pytest.raises(OSError, match="disk full"):
            worker_daemon.worker(connection, True)


def test_a_worker_that_is_used_again_is_settled_first(monkeypatch):
    settled = []
    monkeypatch.setattr(worker_daemon, "settle_worker", lambda: settled.append("settled"))
    monkeypatch.setattr(worker_daemon, "_pyspark_worker", lambda sock, authenticated: 0 if authenticated else 3)
    with socket.socket() as connection:
        assert worker_daemon.worker(connection, False) == 3
        assert not settled
        assert worker_daemon.worker(connection, True) == 0
        assert settled


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux shows them")
def test_nothing_that_is_loaded_before_the_fork_starts_a_thread():
    program = "import os; from pyspark_millrace.environment import worker_daemon as daemon; daemon.load_beforehand()"
    count = "print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", f"{program}; {count}"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"

"""A worker on which Spark hangs up ends without a word; one that fails in another way does not."""

import socket

import pytest

from pyspark_millrace import worker_daemon


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_closed_connection_only_ends_the_worker(monkeypatch, error):
    def hung_up(sock, authenticated):
        raise error

    monkeypatch.setattr(worker_daemon, "_pyspark_worker", hung_up)
    with socket.socket() as connection:
        assert worker_daemon.worker(connection, True) == 1


def test_other_ends_are_told_as_they_are(monkeypatch):
    def failing(sock, authenticated):
        if authenticated:
            raise OSError("disk full")
        return 3

    monkeypatch.setattr(worker_daemon, "_pyspark_worker", failing)
    with socket.socket() as connection:
        assert worker_daemon.worker(connection, False) == 3
        with pytest.raises(OSError, match="disk full"):
            worker_daemon.worker(connection, True)

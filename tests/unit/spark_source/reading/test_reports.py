"""Tests of a task's report of its reading, and other messages.

No other message counts as a report.
"""

import json
import socket

import pytest

from pyspark_millrace.reading.reports import ReadCounters, ReadReport, read_datagram, send_datagram, timed

from ....integration.waiting import STALL_S

REPORT = ReadReport("q", "t", 10, 2, 300, 64, 0.5)


def test_a_report_is_received_with_the_right_secret_only():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(STALL_S)
        send_datagram(f"127.0.0.1:{receiver.getsockname()[1]}:secret", REPORT)
        data = receiver.recv(4096)
    assert read_datagram(data, "secret") == REPORT
    assert read_datagram(data, "another") is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"3", b"{}", json.dumps({"token": "s", "x": 1}).encode()])
def test_other_datagrams_are_ignored(data):
    assert read_datagram(data, "s") is None


def test_a_signal_without_listeners_is_no_error():
    send_datagram("127.0.0.1:9:secret", REPORT)
    send_datagram("no.such.host.invalid:9:secret", REPORT)


def test_time_to_use_batches_is_not_counted(monkeypatch):
    import time

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def reading():
        for number in range(3):
            now[0] += 1
            yield number

    counters = ReadCounters()
    for _ in timed(reading(), counters):
        now[0] += 100
    assert counters.seconds == 3


def test_bytes_that_were_fetched_and_not_decoded_count_as_skipped():
    assert ReadCounters(decoded_bytes=300, located_bytes=364).skipped_bytes == 64
    # A read that failed and was repeated in another way decodes nothing twice, but may fetch it twice.
    assert ReadCounters(decoded_bytes=300, located_bytes=200).skipped_bytes == 0

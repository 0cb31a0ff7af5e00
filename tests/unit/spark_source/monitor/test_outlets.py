"""Tests of metrics written in the background, with retries."""

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pyspark_millrace.monitor.outlets import Outlets

from ....integration.waiting import STALL_S


class Moody(Collector):
    """An outlet that fails at its first call."""

    def __init__(self):
        self.asked = 0

    def collect(self):
        self.asked += 1
        if self.asked == 1:
            raise ValueError("no mood")
        yield GaugeMetricFamily("asked", "How often.", value=self.asked)

    def describe(self):
        return []


def test_a_failure_does_not_end_the_writing(tmp_path, caplog):
    registry, file = CollectorRegistry(), tmp_path / "metrics.prom"
    registry.register(Moody())
    outlets = Outlets(registry)
    outlets.add_textfile(file)
    for there in (False, True):
        outlets.writing.wake()
        assert outlets.writing.wait_until_idle(STALL_S)
        assert file.exists() is there
    assert "asked 2.0" in file.read_text()
    assert "metrics were not written" in caplog.text


def test_files_that_cannot_be_written_are_named_and_the_others_are(tmp_path, caplog):
    outlets = Outlets(CollectorRegistry())
    outlets.add_textfile(tmp_path / "missing" / "metrics.prom")
    outlets.add_textfile(tmp_path / "metrics.prom")
    outlets.writing.wake()
    assert outlets.writing.wait_until_idle(STALL_S)
    assert (tmp_path / "metrics.prom").exists()
    assert f"metrics were not written to {tmp_path}/missing" in caplog.text

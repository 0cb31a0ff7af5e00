"""Tests of metrics written in the background, with retries."""

import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from millrace.errors import InvalidConfigError
from pyspark_millrace.monitor.outlets import Outlets

from ....certificates import Authority
from ....integration.waiting import STALL_S
from ....metrics_over_https import basic, read_metrics
from ....planted_secrets import planted


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


@pytest.mark.usefixtures("finest_log")
def test_metrics_are_served_over_https_to_users(tmp_path):
    authority, secret = Authority.make(), planted("prometheus")
    (tmp_path / "users.properties").write_text(f'users=PlainLoginModule required user_prometheus="{secret}";\n')
    registry = CollectorRegistry()
    registry.register(Moody())
    security = {
        "security.protocol": "SASL_SSL",
        "ssl.keystore.location": authority.issue("CN=driver").write(tmp_path / "driver.pem"),
        "sasl.jaas.config": f"${{file:{tmp_path}/users.properties:users}}",
        "ssl.reload.interval.ms": "0",
    }
    port = Outlets(registry).serve("127.0.0.1", 0, security)
    for attempt in (basic("", ""), basic("prometheus", "wrong")):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read_metrics(port, authority, **attempt)
    user = basic("prometheus", secret)
    with pytest.raises(urllib.error.HTTPError, match="500"):
        read_metrics(port, authority, **user)  # the collector fails at its first call
    assert "asked 2.0" in read_metrics(port, authority, **user)
    other = Authority.make()
    other.issue("CN=driver").write(tmp_path / "driver.pem")
    assert "asked 3.0" in read_metrics(port, other, **user), "a new certificate is read"
    with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
        read_metrics(port, authority)


@pytest.mark.parametrize(
    ("host", "security", "problem"),
    [
        ("0.0.0.0", {}, r"at 0\.0\.0\.0:0 have no encryption, .* set security\.protocol=SSL"),
        (
            "127.0.0.1",
            {"security.protocol": "TLS"},
            r"security\.protocol='TLS' of the metrics: expected PLAINTEXT, SSL",
        ),
        ("127.0.0.1", {"security.protocol": "SSL"}, "metrics: a listener with TLS needs a certificate"),
        ("127.0.0.1", {"security.protocol": "SASL_PLAINTEXT"}, r"metrics: SASL_PLAINTEXT needs users: set sasl\.jaas"),
        ("127.0.0.1", {"ssl.keystore": "x"}, r"ssl\.keystore"),
    ],
)
def test_metrics_that_cannot_be_as_secure_as_configured_are_not_served(host, security, problem):
    outlets = Outlets(CollectorRegistry())
    with pytest.raises(InvalidConfigError, match=problem):
        outlets.serve(host, 0, security)
    assert outlets.ports == []


def test_metrics_without_encryption_are_served_beyond_loopback_if_the_options_say_so():
    outlets = Outlets(CollectorRegistry())
    assert outlets.serve("0.0.0.0", 0, {"security.protocol": "plaintext"}) == outlets.ports[0]

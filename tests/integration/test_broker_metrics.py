"""Tests of a broker's metrics in Prometheus, while clients use the broker."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import EnvironmentProblemError, InvalidConfigError
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from ..metrics_over_https import basic, read_metrics
from ..planted_secrets import planted
from .waiting import STALL_S, eventually


def samples(broker):
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=STALL_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }


def wait_for(broker, is_there):
    return eventually(lambda: is_there(found := samples(broker)) and found, pause_s=0.05)


def test_metrics_say_what_waits_and_what_was_done(tmp_path):
    options = {"metrics.port": 0, "group.initial.rebalance.delay.ms": 0}
    with EmbeddedBroker(tmp_path, options=options) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=3)
        before = samples(broker)
        assert before[("millrace_delayed_operations", "fetch of committed records")] == 0
        config = {"bootstrap.servers": broker.bootstrap_servers, "fetch.max.wait.ms": 20_000, "direct.reads": "never"}
        with Consumer({**config, "group.id": "readers"}) as consumer:
            consumer.subscribe(["orders"])
            while len(consumer.assignment()) < 3:
                consumer.poll(100)
            consumer.poll(100)  # one fetch waits at the broker
            waiting = wait_for(broker, lambda found: found[("millrace_delayed_operations", "fetch")] == 1)
            assert waiting[("millrace_delayed_watched", "fetch")] == 3
            assert waiting[("millrace_groups", "Stable")] == 1
            assert waiting[("millrace_delayed_operations", "heartbeat")] == 1
            assert waiting[("millrace_connections",)] > 0
            with Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "writer"}) as producer:
                producer.init_transactions()
                with producer.transaction():
                    producer.send("orders", b"1")
            done = wait_for(broker, lambda found: found[("millrace_delayed_completed_total", "fetch")] >= 1)
            consumer.commit()
        assert done[("millrace_topics",)] == 3  # and two of the broker's own
        done = wait_for(broker, lambda found: ("millrace_transactions_ended_total", "committed") in found)
        assert done[("millrace_transactions_ended_total", "committed")] == 1
        assert done[("millrace_group_offsets",)] == 3


def test_the_cleaners_work_is_counted(tmp_path):
    options = {"metrics.port": 0, "log.cleaner.backoff.ms": 50}
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": "10000"}
    with EmbeddedBroker(tmp_path, options=options) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("latest", partitions=1, configs=compact)
        assert samples(broker)[("millrace_cleanings_total",)] == 0
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for _ in range(100):
                producer.send_table("latest", {"key": [b"k"] * 10, "value": [b"v" * 90] * 10})
                producer.flush()
        done = wait_for(broker, lambda found: found[("millrace_cleanings_total",)] > 0)
        assert done[("millrace_cleaner_read_bytes_total",)] > done[("millrace_cleaner_written_bytes_total",)] > 0
        assert done[("millrace_cleaner_seconds_total",)] > 0
        assert done[("millrace_uncleanable_partitions",)] == 0
        assert 0 <= done[("millrace_cleaner_dirty_ratio_max",)] <= 1
        assert done[("millrace_cleaner_in_progress",)] in (0, 1)


def test_metrics_are_served_only_on_request_and_a_port_in_use_is_named(tmp_path):
    with EmbeddedBroker(tmp_path / "quiet") as broker:
        assert broker.metrics_port == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblemError, match=f"metrics cannot be served on 127.0.0.1:{port}: Address alr"):
            EmbeddedBroker(tmp_path / "taken", metrics_port=port).start()


# --- over HTTPS --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority():
    return Authority.make()


@pytest.fixture
def stores(authority, tmp_path):
    return {
        "metrics.port": 0,
        "metrics.security.protocol": "SSL",
        "ssl.keystore.location": authority.issue("CN=broker").write(tmp_path / "broker.pem"),
        "ssl.truststore.location": authority.write(tmp_path / "ca.pem"),
        "ssl.reload.interval.ms": 0,
    }


@pytest.mark.usefixtures("finest_log")
def test_metrics_are_served_over_https_to_authenticated_users(tmp_path, authority, stores):
    secret = planted("secret")
    users = f'PlainLoginModule required user_prometheus="{secret}";'
    options = {
        **stores,
        "metrics.security.protocol": "SASL_SSL",
        "listener.name.metrics.plain.sasl.jaas.config": users,
    }
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        assert "millrace_topics 0.0" in read_metrics(broker.metrics_port, authority, **basic("prometheus", secret))
        wrong = [{}, basic("prometheus", "wrong"), basic("nobody", ""), {"Authorization": "Basic \u00e9"}]
        for headers in [*wrong, {"Authorization": f"Bearer {secret}"}]:
            with pytest.raises(urllib.error.HTTPError, match="401"):
                read_metrics(broker.metrics_port, authority, **headers)
        with pytest.raises(OSError, match=r"reset|closed|aborted"):
            urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=STALL_S)
        assert read_metrics(broker.metrics_port, authority, **basic("prometheus", secret)), "the server goes on"


def test_only_clients_with_a_certificate_are_served(tmp_path, authority, stores):
    options = {**stores, "listener.name.metrics.ssl.client.auth": "required"}
    own = authority.issue("CN=prometheus").write(tmp_path / "own.pem")
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        assert "millrace_topics" in read_metrics(broker.metrics_port, authority, own)
        with pytest.raises(OSError, match=r"(?i)certificate required|reset|closed|EOF occurred"):
            read_metrics(broker.metrics_port, authority)


def test_a_new_certificate_is_used_without_a_restart(tmp_path, authority, stores):
    with EmbeddedBroker(tmp_path / "data", options=stores) as broker:
        assert "millrace_topics" in read_metrics(broker.metrics_port, authority)
        other = Authority.make()
        other.issue("CN=broker").write(tmp_path / "broker.pem")
        assert "millrace_topics" in read_metrics(broker.metrics_port, other)
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            read_metrics(broker.metrics_port, authority)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ssl.keystore.location": ""}, "metrics: a listener with TLS needs a certificate"),
        ({"metrics.security.protocol": "SASL_SSL"}, r"without users: set listener\.name\.metrics\.plain"),
        (
            {"metrics.security.protocol": "PLAINTEXT", "listeners": "SSL://0.0.0.0:0"},
            r"metrics at 0\.0\.0\.0:0 have no encryption, .* set metrics\.security\.protocol=SSL",
        ),
    ],
)
def test_metrics_that_cannot_be_secured_are_refused_with_the_remedy(tmp_path, stores, options, message):
    authorizer = {"authorizer.class.name": "millrace_broker.security.AclAuthorizer"}
    with pytest.raises(InvalidConfigError, match=message):
        EmbeddedBroker(tmp_path / "data", options={**stores, **authorizer, **options}).start()

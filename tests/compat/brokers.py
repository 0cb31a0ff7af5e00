"""The two brokers of a comparison, millrace and Kafka.

Kafka has one KRaft node. Both brokers have the options of ``OPTIONS``. A broker has three listeners: without security,
with SASL, and with TLS. Its users are those of ``security``.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import kafka
from benchmarks.workspace import free_port, start, stop, tail
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ..oidc_provider import Provider, running
from . import install, security

OPTIONS = {
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.segment.delete.delay.ms": "1000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Options of both brokers. The suites expect them, or end sooner with them."""

_MILLRACE = """\
broker.id=0
log.dirs={data}
listeners={listeners}
advertised.listeners={listeners}
"""
_KAFKA = """\
listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
"""
"""Listeners in place of those of ``kafka.NODE``, because the last value of a property counts."""
_KAFKA_LOG = """\
rootLogger.level=INFO
rootLogger.appenderRef.0.ref=console
appender.0.type=Console
appender.0.name=console
appender.0.layout.type=PatternLayout
appender.0.layout.pattern=[%d] %p %m (%c)%n
"""
_START_SECONDS_MAX = 120
_ATTEMPT_SECONDS = 5


class BrokerError(Exception):
    """A broker that did not start. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Addresses of a broker's listeners, and what a client needs for them."""

    plain: str
    sasl: str
    ssl: str
    provider: Provider
    """The provider of tokens for the mechanism OAUTHBEARER."""
    certificates: security.Certificates

    @property
    def by_protocol(self) -> str:
        """The listeners in the syntax of a broker's option."""
        return f"PLAINTEXT://{self.plain},SASL_PLAINTEXT://{self.sasl},SSL://{self.ssl}"


@contextlib.contextmanager
def broker(kind: str, options: Mapping[str, str] = OPTIONS) -> Iterator[Listeners]:
    """Run a broker of the kind ``millrace`` or ``kafka`` on an empty directory, and yield its listeners."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=install.cache("brokers")))
    with running() as provider:
        plain, sasl, ssl = (f"127.0.0.1:{free_port()}" for _ in range(3))
        listeners = Listeners(plain, sasl, ssl, provider, security.certificates(folder))
        options = security.options(provider, listeners.certificates) | options
        command = (_millrace if kind == "millrace" else _kafka)(folder, listeners, options)
        log = install.cache("logs") / f"{kind}.log"
        process = start(command, log)
        try:
            wait_until_ready(process, plain, log)
            security.create_users(plain)
            yield listeners
        finally:
            stop(process)
            shutil.rmtree(folder)


def _millrace(folder: Path, listeners: Listeners, options: Mapping[str, str]) -> Sequence[str | Path]:
    own = _MILLRACE.format(data=folder / "data", listeners=listeners.by_protocol)
    return [sys.executable, "-m", "millrace.cli.main", "broker", "--config", _properties(folder, own, options)]


def _kafka(folder: Path, listeners: Listeners, options: Mapping[str, str]) -> Sequence[str | Path]:
    home = install.kafka()
    port, controller_port = listeners.plain.rpartition(":")[2], free_port()
    own = kafka.NODE.format(node_id=0, port=port, controller_port=controller_port, data=folder / "data")
    own += _KAFKA.format(listeners=listeners.by_protocol, controller_port=controller_port) + security.KAFKA
    properties = _properties(folder, own, options)
    logging = folder / "log4j2.properties"
    logging.write_text(_KAFKA_LOG)
    cluster = install.run([home / "bin" / "kafka-storage.sh", "random-uuid"]).split()[-1]
    install.run([home / "bin" / "kafka-storage.sh", "format", "-t", cluster, "-c", properties])
    keys = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={options[security.JWKS]}"
    log_option = f"-Dlog4j2.configurationFile={logging}"
    return ["java", "-Xms1g", "-Xmx1g", keys, log_option, "-cp", f"{home}/libs/*", "kafka.Kafka", properties]


def _properties(folder: Path, own: str, options: Mapping[str, str]) -> Path:
    path = folder / "server.properties"
    path.write_text(own + "".join(f"{name}={value}\n" for name, value in options.items()))
    return path


def wait_until_ready(process: subprocess.Popen[str], address: str, log: Path) -> None:
    """Wait until the broker answers and has loaded its groups, because no suite waits for that."""
    admin = AdminClient({"bootstrap.servers": address, "reconnect.backoff.max.ms": 500, "log_level": 0})
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        try:
            admin.list_topics(timeout=1)
            # An attempt while Kafka loads its groups is not answered within any time.
            admin.describe_consumer_groups(["ready"], request_timeout=_ATTEMPT_SECONDS)["ready"].result()
        except KafkaException as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BrokerError(f"the broker at {address} did not start ({error}):\n{tail(log)}") from None
        else:
            return

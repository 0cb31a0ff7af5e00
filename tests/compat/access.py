"""The access matrix of Kafka's calls, tried against Kafka.

Run it by ``python -m tests.compat.access``.

The requests and the needs are those of ``tests/integration/test_kafka_access_matrix.py``, which tries them against
millrace. Here Kafka's ``StandardAuthorizer`` decides about the same ones. The first version of a call is tried without
ACLs, with all that it needs, and with all but one of them. The last version is tried with the whole matrix: other
identities, hosts and resources, prefixes, wildcards, and denials over permissions. A case in which Kafka decides
otherwise is printed, and the exit code is then 1.

Kafka's authorizer looks at the records of Produce, so Produce has no transactional id here. Clients without an identity
are left out, because the broker of the comparison is one of them. So are denials of DeleteTopics: KRaft answers that
the topic does not exist, which a client with DELETE may know.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import confluent_kafka
from benchmarks.workspace import free_port, start, stop
from confluent_kafka import admin as confluent

from millrace.acls import CLUSTER_NAME, AclBinding, PatternType, ResourceType
from millrace.ids import parse_id
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest
from millrace.kafka_protocol.lookup import request_class
from millrace.kafka_protocol.message import Message
from millrace.records import Record, build_rows_batch
from millrace_broker.kafka_api.call import KafkaCall

from ..integration.access_broker import HOST, acl, insufficient, sufficient
from ..integration.access_cases import ALICE, ANONYMOUS, Need
from ..integration.kafka_wire import KafkaWire
from ..integration.test_kafka_access_matrix import CALLS, NAMES, OF_CALL, error_codes, filled, is_refused, ways
from . import install
from .brokers import wait_until_ready

_SECONDS_MAX: Final = 30
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},CLIENT://127.0.0.1:{client}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},CLIENT://127.0.0.1:{client}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_alice="alice" user_mallory="mallory";
log.dirs={data}
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
"""Clients are ``User:alice`` and ``User:mallory``. The administrator, at the listener without SASL, is a super user."""
_KINDS: Final = {
    ResourceType.TOPIC: confluent.ResourceType.TOPIC,
    ResourceType.GROUP: confluent.ResourceType.GROUP,
    ResourceType.CLUSTER: confluent.ResourceType.BROKER,
    ResourceType.TRANSACTIONAL_ID: confluent.ResourceType.TRANSACTIONAL_ID,
}
_ALL: Final = confluent.AclBindingFilter(
    confluent.ResourceType.ANY,
    None,
    confluent.ResourcePatternType.ANY,
    None,
    None,
    confluent.AclOperation.ANY,
    confluent.AclPermissionType.ANY,
)
_VALUES: Final[dict[str, dict[str, Any]]] = {
    "AlterConfigs": {"value": "1"},
    "IncrementalAlterConfigs": {"value": "1"},
    "SyncGroup": {"protocol_type": "consumer", "protocol_name": "range"},
    "Produce": {
        "transactional_id": None,
        "records": bytes(build_rows_batch([Record(key=None, value=b"v", timestamp_ms=5)])),
    },
    "DeleteTopics": {"timeout_ms": 10_000},
    "DescribeAcls": dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1),
    "DeleteAcls": {
        "resource_type_filter": 2,
        "resource_name_filter": "none",
        "pattern_type_filter": 3,
        "operation": 1,
        "permission_type": 1,
    },
    "CreateAcls": {"resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3},
}
"""Fields whose zeros Kafka refuses before it asks its authorizer."""


@contextlib.contextmanager
def kafka() -> Iterator[tuple[str, int]]:
    """Run a Kafka broker. Yield the administrator's address, and the client's port."""
    folder, home = install.cache("brokers/kafka-access"), install.kafka()
    shutil.rmtree(folder)
    folder.mkdir()
    plain, controller, client = free_port(), free_port(), free_port()
    properties = folder / "server.properties"
    properties.write_text(
        _PROPERTIES.format(plain=plain, controller=controller, client=client, data=folder / "data"), encoding="utf-8"
    )
    cluster = install.run([home / "bin" / "kafka-storage.sh", "random-uuid"]).split()[-1]
    install.run([home / "bin" / "kafka-storage.sh", "format", "-t", cluster, "-c", properties])
    log = install.cache("logs") / "kafka-access.log"
    command: Sequence[str | Path] = ["java", "-Xmx1g", "-cp", f"{home}/libs/*", "kafka.Kafka", properties]
    process = start(command, log)
    try:
        wait_until_ready(process, f"127.0.0.1:{plain}", log)
        yield f"127.0.0.1:{plain}", client
    finally:
        stop(process)


def _cases(way: Sequence[Need], *, is_whole: bool) -> Iterator[tuple[str, str, Sequence[AclBinding], bool]]:
    """Yield the name of a case, its user, its ACLs, and whether the call is to be refused."""
    yield "no ACL", ALICE.name, [], bool(way)
    yield "all", ALICE.name, [acl(need) for need in way], False
    if not way:
        return
    if not is_whole:
        for need in way:
            yield f"all but {need}", ALICE.name, [acl(each) for each in way if each != need], True
        return
    for acls in sufficient(way):
        if _can_exist(acls):
            yield f"{acls}", ALICE.name, acls, False
    for name, principal, acls in insufficient(way):
        if _can_exist(acls) and principal is not ANONYMOUS:
            yield name, principal.name, acls, True


def _can_exist(acls: Sequence[AclBinding]) -> bool:
    """Return whether Kafka accepts the ACLs, of which those of the cluster have its whole name."""
    of_cluster = (pattern for pattern, _ in acls if pattern.resource_type is ResourceType.CLUSTER)
    return all((each.name, each.pattern_type) == (CLUSTER_NAME, PatternType.LITERAL) for each in of_cluster)


class Comparison:
    """Cases at one broker."""

    def __init__(self, address: str, client_port: int) -> None:
        config = {"bootstrap.servers": address, "log_level": 0}
        self._admin = confluent.AdminClient(config)
        self._plain_port, self._port = int(address.rpartition(":")[2]), client_port
        self._admin.create_topics([confluent.NewTopic("orders", 1)])["orders"].result(_SECONDS_MAX)
        producer = confluent_kafka.Producer({**config, "transactional.id": "external"})
        producer.init_transactions(_SECONDS_MAX)
        consumer = confluent_kafka.Consumer({**config, "group.id": "workers"})
        consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 0)], asynchronous=False)
        consumer.close()
        self._member = confluent_kafka.Consumer({**config, "group.id": "consumers", "group.protocol": "consumer"})
        self._member.subscribe(["orders"])
        self._member.poll(5)
        described = self._admin.describe_topics(confluent_kafka.TopicCollection(["orders"]))["orders"]
        text = str(described.result(_SECONDS_MAX).topic_id)  # in the usual alphabet of Base64, unlike Kafka's own
        self._topic_id: UUID = parse_id(text.replace("+", "-").replace("/", "_"))
        self.cases = 0
        self.differences: list[str] = []

    def compare(self, call: KafkaCall, version: int) -> None:
        """Try the ACLs of a call in one version."""
        values = {**NAMES, **OF_CALL.get(call.name, {}), **_VALUES.get(call.name, {})}
        request = filled(request_class(call.key), version, values, self._topic_id)
        for way in ways(call.name, version):
            if call.name == "Produce":
                way = [need for need in way if need[1] is ResourceType.TOPIC]
            for name, user, acls, is_expected in _cases(way, is_whole=version == call.versions[-1]):
                if call.name == "DeleteTopics" and name.startswith("denied"):
                    continue
                if call.name == "ShareGroupDescribe":
                    self._join_share_group()
                self._let(acls)
                self.cases += 1
                answer = self._ask(request, version, user)
                if is_refused(call.name, version, answer) is not is_expected:
                    found = f"{call.name} {version}, {name}: Kafka answers {error_codes(answer)}"
                    self.differences.append(found)

    def _let(self, wanted: Sequence[AclBinding]) -> None:
        """Let these be all ACLs."""
        for deleted in self._admin.delete_acls([_ALL]).values():
            deleted.result(_SECONDS_MAX)
        bindings = [
            confluent.AclBinding(
                _KINDS[pattern.resource_type],
                pattern.name,
                confluent.ResourcePatternType[pattern.pattern_type.name],
                entry.principal,
                "127.0.0.1" if entry.host == HOST else entry.host,
                confluent.AclOperation[entry.operation.name],
                confluent.AclPermissionType[entry.permission.name],
            )
            for pattern, entry in wanted
        ]
        if bindings:
            for created in self._admin.create_acls(bindings).values():
                created.result(_SECONDS_MAX)
        while len(self._admin.describe_acls(_ALL).result(_SECONDS_MAX)) != len(bindings):
            continue

    def _join_share_group(self) -> None:
        """Let the share group have its member, which expires between slow cases."""
        call = CALLS["ShareGroupHeartbeat"]
        message = filled(request_class(call.key), 1, {**NAMES, **OF_CALL[call.name]}, self._topic_id)
        with KafkaWire(self._plain_port, timeout_s=_SECONDS_MAX) as wire:
            answer = wire.call(message, 1)
            assert not answer.error_code, answer

    def _ask(self, request: Message, version: int, user: str) -> Any:
        with KafkaWire(self._port, timeout_s=_SECONDS_MAX) as wire:
            wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            answer = wire.call(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()), 2)
            assert not answer.error_code, answer
            return wire.call(request, version)

    def close(self) -> None:
        """Leave the group."""
        self._member.close()


def main() -> int:
    """Compare all calls in their first and last versions, or those that the arguments name."""
    with kafka() as (address, port):
        comparison = Comparison(address, port)
        for call in CALLS.values():
            if not sys.argv[1:] or call.name in sys.argv[1:]:
                for version in sorted({call.versions[0], call.versions[-1]}):
                    try:
                        comparison.compare(call, version)
                    except (EOFError, TimeoutError) as error:
                        comparison.differences.append(f"{call.name} {version}: {error!r}")
        comparison.close()
    print(*comparison.differences, f"{comparison.cases} cases, {len(comparison.differences)} differences", sep="\n")
    return 1 if comparison.differences else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tests of Kafka's command-line tools against the broker at ``COMPAT_BOOTSTRAP``.

The name of the file keeps pytest from collecting it with the tests of millrace. ``tools`` runs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .install import KAFKA_PROGRAMS
from .kafka_tools import SECONDS_MAX, KafkaTools
from .security import USER, client_options

_BOOTSTRAP = os.environ.get("COMPAT_BOOTSTRAP", "")
_SASL = os.environ.get("COMPAT_SASL", "")
"""The listener for users with passwords."""
_HOME = Path(os.environ.get("COMPAT_KAFKA_HOME", "."))
_TOOLS = KafkaTools(_HOME)


def tool(name: str, *arguments: str | int | Path, input: str = "", fails: bool = False) -> str:
    """Run a tool and return its standard output. ``fails`` expects an error, and returns all output."""
    return run(KAFKA_PROGRAMS[name], "--bootstrap-server", _BOOTSTRAP, *arguments, input=input, fails=fails)


def run(main: str, *arguments: str | int | Path, input: str = "", fails: bool = False) -> str:
    """Run the main method of a class of Kafka's, as ``tool`` does."""
    words = [str(argument) for argument in arguments]
    ended = _TOOLS.run(main, words, input)
    everything = ended.stdout + ended.stderr
    is_failure = bool(ended.code) or (fails and "rror" in everything)
    assert is_failure == fails, f"{main} {' '.join(words)} ended with {ended.code}: {everything[-1500:]}"
    return everything if fails else ended.stdout


@pytest.fixture(scope="module", autouse=True)
def _closed_tools() -> Iterator[None]:
    yield
    _TOOLS.close()


def create(topic: str, partitions: int = 4, *options: str) -> None:
    tool("kafka-topics", "--create", "--topic", topic, "--partitions", partitions, "--replication-factor", 1, *options)


def produce(topic: str, count: int, *options: str | int | Path) -> None:
    """Write numbers with the verifiable producer, and require an acknowledgement of each."""
    events = _events(tool("kafka-verifiable-producer", "--topic", topic, "--max-messages", count, *options))
    assert [event["acked"] for event in events if event["name"] == "tool_data"] == [count]


def consume(topic: str, *options: str | int, from_beginning: bool = True) -> list[str]:
    """Return the lines of the console consumer up to the end of the topic."""
    where = ["--from-beginning"] if from_beginning else []
    output = tool("kafka-console-consumer", "--topic", topic, *where, "--timeout-ms", 8000, *options)
    return output.splitlines()


def end_offsets(topic: str) -> int:
    output = tool("kafka-get-offsets", "--topic", topic)
    return sum(int(line.split(":")[2]) for line in output.splitlines() if line.startswith(f"{topic}:"))


def lag(group: str, topic: str) -> int:
    """Return the lag of a group in a topic, from the table of ``kafka-consumer-groups``."""
    lines = tool("kafka-consumer-groups", "--describe", "--group", group).splitlines()
    lags = [line.split()[5] for line in lines if line.split()[1:2] == [topic]]
    assert lags, lines
    return sum(int(each) for each in lags)


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        time.sleep(0.2)
        assert time.monotonic() < deadline, "the condition did not become true"


def _events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of a topic of this test, also used for its groups and ids."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))
    return f"{name}-{os.getpid()}"


def test_api_versions_lists_calls_of_each_kind() -> None:
    output = tool("kafka-broker-api-versions")
    for call in ("Produce(0): ", "Fetch(1): ", "JoinGroup(11): ", "ConsumerGroupHeartbeat(68): "):
        assert call in output


def test_cluster_id_is_printed() -> None:
    assert "Cluster ID: " in run(KAFKA_PROGRAMS["kafka-cluster"], "cluster-id", "--bootstrap-server", _BOOTSTRAP)


def test_topics_are_created_described_altered_and_deleted(topic: str) -> None:
    create(topic, 4, "--config", "retention.ms=7200000")
    assert topic in tool("kafka-topics", "--list").split()
    described = tool("kafka-topics", "--describe", "--topic", topic)
    for part in ("PartitionCount: 4", "ReplicationFactor: 1", "retention.ms=7200000", "Partition: 3"):
        assert part in described
    tool("kafka-topics", "--alter", "--topic", topic, "--partitions", 6)
    assert "PartitionCount: 6" in tool("kafka-topics", "--describe", "--topic", topic)
    create(topic, 4, "--if-not-exists")
    tool("kafka-topics", "--delete", "--topic", topic)
    eventually(lambda: topic not in tool("kafka-topics", "--list").split())


def test_topics_by_pattern_are_deleted(topic: str) -> None:
    for number in range(3):
        create(f"{topic}-{number}", 1)
    tool("kafka-topics", "--delete", "--topic", f"{topic}-.*")
    eventually(lambda: topic not in tool("kafka-topics", "--list"))


def test_invalid_topics_are_refused_with_kafkas_errors(topic: str) -> None:
    create(topic, 1)
    wrong = ("--partitions", 1, "--replication-factor")
    assert "already exists" in tool("kafka-topics", "--create", "--topic", topic, *wrong, 1, fails=True)
    assert "invalid" in tool("kafka-topics", "--create", "--topic", "bad name!", *wrong, 1, fails=True)
    assert "eplicat" in tool("kafka-topics", "--create", "--topic", f"{topic}-9", *wrong, 9, fails=True)


def test_console_prints_keys_and_headers(topic: str) -> None:
    create(topic, 1)
    lines = [f"h1:x,h2:y\tk{number}|v{number}" for number in range(3)]
    properties = ["parse.key=true", "key.separator=|", "parse.headers=true"]
    options = [part for each in properties for part in ("--reader-property", each)]
    tool("kafka-console-producer", "--topic", topic, *options, input="\n".join(lines) + "\n")
    properties = ["print.key=true", "key.separator=|", "print.headers=true", "headers.separator=,"]
    options = [part for each in properties for part in ("--formatter-property", each)]
    found = consume(topic, "--max-messages", 3, *options)
    assert found == [line.replace("\t", "|") for line in lines]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_reads_records_of_each_compression(topic: str, compression: str) -> None:
    create(topic, 1)
    lines = [str(number) for number in range(500)]
    tool(
        "kafka-console-producer",
        "--topic",
        topic,
        f"--compression-codec={compression}",
        input="\n".join(lines) + "\n",
    )
    assert consume(topic, "--max-messages", 500) == lines


def test_console_reads_from_an_offset(topic: str) -> None:
    create(topic, 1)
    produce(topic, 200)
    assert len(consume(topic, "--partition", 0, "--offset", 5, from_beginning=False)) == 195


def test_console_producer_creates_its_topic(topic: str) -> None:
    tool("kafka-console-producer", "--topic", topic, input="a\nb\n")
    assert sorted(consume(topic, "--max-messages", 2)) == ["a", "b"]


def test_verifiable_producer_writes_with_each_acks(topic: str) -> None:
    create(topic)
    for acks in (0, 1, -1):
        produce(topic, 1000, "--acks", acks)
    assert end_offsets(topic) == 3000


@pytest.mark.parametrize("protocol", ["CLASSIC", "CONSUMER"])
def test_verifiable_consumer_reads_and_commits_all_records(topic: str, protocol: str) -> None:
    create(topic)
    produce(topic, 2000)
    options = ("--topic", topic, "--group-id", topic, "--max-messages", 2000, "--group-protocol", protocol)
    events = _events(tool("kafka-verifiable-consumer", *options))
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 2000
    assert lag(topic, topic) == 0


_COOPERATIVE = ("--assignment-strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor")


@pytest.mark.parametrize(
    "options",
    [("CLASSIC",), ("CLASSIC", *_COOPERATIVE), ("CONSUMER",)],
    ids=["range", "cooperative", "consumer"],
)
def test_two_members_share_the_partitions_of_a_group(topic: str, options: tuple[str, ...]) -> None:
    create(topic)
    words = [str(_HOME / "bin" / "kafka-verifiable-consumer.sh"), "--bootstrap-server", _BOOTSTRAP]
    words += ["--topic", topic, "--group-id", topic, "--group-protocol", *options]
    members = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]

    def have_two_each() -> bool:
        asked = ("--bootstrap-server", _BOOTSTRAP, "--describe", "--members", "--group", topic)
        ended = _TOOLS.run(KAFKA_PROGRAMS["kafka-consumer-groups"], asked)  # an error as long as there is no group
        rows = [line.split() for line in ended.stdout.splitlines()]
        return [row[4] for row in rows if row[:1] == [topic]] == ["2", "2"]

    try:
        eventually(have_two_each)
    finally:
        for member in members:
            member.terminate()
        for member in members:
            member.wait(SECONDS_MAX)


def test_groups_are_listed_described_reset_and_deleted(topic: str) -> None:
    create(topic, 2)
    produce(topic, 100)
    consume(topic, "--group", topic, "--max-messages", 100)
    group = ("--group", topic)
    assert topic in tool("kafka-consumer-groups", "--list").split()
    assert "Empty" in tool("kafka-consumer-groups", "--describe", "--state", *group)
    tool("kafka-consumer-groups", *group, "--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    assert lag(topic, topic) == 100
    times = ("--to-datetime", "2020-01-01T00:00:00.000", "--all-topics", "--dry-run")
    assert topic in tool("kafka-consumer-groups", *group, "--reset-offsets", *times)
    tool("kafka-consumer-groups", *group, "--delete-offsets", "--topic", topic)
    assert "successful" in tool("kafka-consumer-groups", "--delete", *group)
    assert topic not in tool("kafka-groups", "--list")


def test_records_before_an_offset_are_deleted(topic: str, tmp_path: Path) -> None:
    create(topic, 1)
    produce(topic, 100)
    wanted = tmp_path / "records.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 40}]}))
    assert "low_watermark: 40" in tool("kafka-delete-records", "--offset-json-file", wanted)
    assert f"{topic}:0:40" in tool("kafka-get-offsets", "--topic", topic, "--time", "-2")
    assert f"{topic}:0:100" in tool("kafka-get-offsets", "--topic", topic, "--time", "-1")
    assert f"{topic}:0:" in tool("kafka-get-offsets", "--topic", topic, "--time", "-3")
    assert len(consume(topic)) == 60


def alter_config(kind: str, name: str, change: str, value: str, *, fails: bool = False) -> str:
    entity = ("--entity-default",) if name == "" else ("--entity-name", name)
    return tool("kafka-configs", "--alter", "--entity-type", kind, *entity, change, value, fails=fails)


def described_config(kind: str, name: str) -> str:
    entity = ("--entity-default",) if name == "" else ("--entity-name", name)
    return tool("kafka-configs", "--describe", "--entity-type", kind, *entity)


def test_acls_are_added_listed_and_removed(topic: str) -> None:
    rule = ("--allow-principal", "User:bob", "--operation", "Read", "--topic", topic)
    assert "operation=READ" in tool("kafka-acls", "--add", *rule)
    assert "User:bob" in tool("kafka-acls", "--list", "--topic", topic)
    tool("kafka-acls", "--remove", "--force", "--topic", topic)
    assert "User:bob" not in tool("kafka-acls", "--list", "--topic", topic)


def test_acls_by_prefix_and_for_producers_are_added_and_removed(topic: str) -> None:
    rule = ("--producer", "--resource-pattern-type", "prefixed", "--topic", topic, "--allow-principal", "User:bob")
    added = tool("kafka-acls", "--add", *rule)
    for operation in ("DESCRIBE", "CREATE", "WRITE"):
        assert f"operation={operation}, permissionType=ALLOW" in added
    found = tool("kafka-acls", "--list", "--topic", f"{topic}-1", "--resource-pattern-type", "match")
    assert "patternType=PREFIXED" in found
    tool("kafka-acls", "--remove", "--force", *rule)
    assert "User:bob" not in tool("kafka-acls", "--list")


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """Properties of a client that authenticates as the user."""
    path = tmp_path / "client.properties"
    path.write_text(client_options("SCRAM-SHA-512"))
    return path


def _secured(name: str, client: Path, *arguments: str | int | Path, input: str = "", fails: bool = False) -> str:
    """Run a tool as the user, at the listener for users."""
    options = ("--bootstrap-server", _SASL, "--command-config", client)
    return run(KAFKA_PROGRAMS[name], *options, *arguments, input=input, fails=fails)


def test_denied_user_can_neither_list_nor_write_the_topic(topic: str, client: Path) -> None:
    create(topic, 1)
    rule = ("--deny-principal", f"User:{USER}", "--operation", "All", "--topic", topic)
    tool("kafka-acls", "--add", *rule)
    try:
        eventually(lambda: topic not in _secured("kafka-topics", client, "--list").split())
        assert "TopicAuthorizationException" in _sent(topic, client)
    finally:
        tool("kafka-acls", "--remove", "--force", *rule)
    eventually(lambda: topic in _secured("kafka-topics", client, "--list").split())
    assert "producer_send_success" in _sent(topic, client)


def _sent(topic: str, client: Path) -> str:
    """Send a record as the user, and return what the tool says about it."""
    words = ("--topic", topic, "--max-messages", "1", "--bootstrap-server", _SASL, "--command-config", str(client))
    return _TOOLS.run(KAFKA_PROGRAMS["kafka-verifiable-producer"], words).stdout


def test_wrong_password_is_refused(tmp_path: Path) -> None:
    client = tmp_path / "client.properties"
    client.write_text(client_options("SCRAM-SHA-512", password="alice-wrong"))
    refused = _secured("kafka-topics", client, "--list", fails=True)
    assert "invalid credentials" in refused


def test_delegation_tokens_are_created_renewed_used_and_expired(topic: str, client: Path, tmp_path: Path) -> None:
    tokens = partial(_secured, "kafka-delegation-tokens", client)
    created = tokens("--create", "--max-life-time-period", -1, "--renewer-principal", "User:scheduler")
    token_id, hmac = next(line.split()[:2] for line in created.splitlines() if f"User:{USER}" in line)
    owned = ("--describe", "--owner-principal", f"User:{USER}")
    eventually(lambda: token_id in tokens(*owned))
    assert "User:scheduler" in tokens(*owned)
    tokens("--renew", "--renew-time-period", 3_600_000, "--hmac", hmac)
    as_token = tmp_path / "token.properties"
    as_token.write_text(client_options("SCRAM-SHA-512", token_id, hmac, tokenauth="true"))
    create(topic, 1)
    assert topic in _secured("kafka-topics", as_token, "--list").split()
    assert "DelegationToken" in _secured(
        "kafka-delegation-tokens", as_token, "--create", "--max-life-time-period", -1, fails=True
    )
    tokens("--expire", "--expiry-time-period", -1, "--hmac", hmac)
    eventually(lambda: token_id not in tokens(*owned))
    assert "invalid credentials" in _secured("kafka-topics", as_token, "--list", fails=True)


def test_client_compatibility_test_finds_the_supported_features(topic: str) -> None:
    create(topic, 1)
    expected = {
        "offsets-for-times-supported": "True",
        "cluster-id-supported": "True",
        "expect-record-too-large-exception": "False",
        "num-cluster-nodes": "1",
        "create-topics-supported": "True",
        "describe-acls-supported": "True",
        "describe-configs-supported": "True",
        "idempotent-producer-supported": "True",
    }
    options = [part for name, value in expected.items() for part in (f"--{name}", value)]
    run("org.apache.kafka.tools.ClientCompatibilityTest", "--bootstrap-server", _BOOTSTRAP, "--topic", topic, *options)


@pytest.mark.parametrize(
    "options",
    [(), ("--enable-random-aborts",), ("--group-mode", "--use-group-metadata")],
    ids=["plain", "aborts", "group"],
)
def test_transactional_message_copier_copies_each_record_once(topic: str, options: tuple[str, ...]) -> None:
    source, target = f"{topic}-from", f"{topic}-to"
    create(source, 1)
    create(target, 1)
    produce(source, 2000)
    copy = {
        "input-topic": source,
        "input-partition": 0,
        "output-topic": target,
        "broker-list": _BOOTSTRAP,
        "max-messages": 2000,
        "consumer-group": topic,
        "transaction-size": 150,
        "transactional-id": topic,
    }
    words = [part for name, value in copy.items() for part in (f"--{name}", value)]
    run("org.apache.kafka.tools.TransactionalMessageCopier", *words, *options)
    found = consume(target, "--command-property", "isolation.level=read_committed")
    assert sorted(map(int, found)) == list(range(2000))
    assert lag(topic, source) == 0


def _transactions(*arguments: str | int) -> str:
    return run(KAFKA_PROGRAMS["kafka-transactions"], "--bootstrap-server", _BOOTSTRAP, *arguments)


def test_transactions_are_listed_and_described(topic: str) -> None:
    create(topic, 1)
    perf = ("--num-records", 100, "--record-size", 10, "--throughput", -1, "--transactional-id", topic)
    tool("kafka-producer-perf-test", "--topic", topic, *perf)
    assert topic in _transactions("list")
    assert "CompleteCommit" in _transactions("describe", "--transactional-id", topic)


def test_producers_are_described(topic: str) -> None:
    create(topic, 1)
    produce(topic, 50)
    options = ("--num-records", 50, "--record-size", 10, "--throughput", -1, "--command-property")
    tool("kafka-producer-perf-test", "--topic", topic, *options, "enable.idempotence=true")
    described = _transactions("describe-producers", "--topic", topic, "--partition", 0)
    assert "LastSequence" in described
    assert "49" in described
    _transactions("find-hanging", "--topic", topic, "--partition", 0)


def test_producer_performance_test_writes_all_records(topic: str) -> None:
    create(topic)
    options = ("--num-records", 50_000, "--record-size", 100, "--throughput", -1)
    output = tool("kafka-producer-perf-test", "--topic", topic, *options, "--command-property", "compression.type=lz4")
    assert "50000 records sent" in output
    assert end_offsets(topic) == 50_000


def test_producer_performance_test_writes_all_records_in_transactions(topic: str) -> None:
    create(topic)
    options = ("--num-records", 20_000, "--record-size", 100, "--throughput", 10_000, "--transactional-id", topic)
    output = tool("kafka-producer-perf-test", "--topic", topic, *options, "--transaction-duration-ms", 300)
    assert "20000 records sent" in output
    assert len(consume(topic, "--command-property", "isolation.level=read_committed")) == 20_000


def test_consumer_performance_test_reads_all_records(topic: str) -> None:
    create(topic)
    options = ("--num-records", 50_000, "--record-size", 100, "--throughput", -1)
    tool("kafka-producer-perf-test", "--topic", topic, *options)
    output = tool("kafka-consumer-perf-test", "--topic", topic, "--num-records", 50_000, "--timeout", 20_000)
    assert int(output.splitlines()[-1].split(", ")[4]) >= 50_000


def test_end_to_end_latency_is_printed(topic: str) -> None:
    create(topic, 1)
    options = ("--topic", topic, "--num-records", 500, "--producer-acks", "all", "--record-size", 100)
    assert "Avg latency" in tool("kafka-e2e-latency", *options)


def test_log_dirs_are_described_with_their_partitions(topic: str) -> None:
    create(topic, 1)
    produce(topic, 10)
    assert f'"partition":"{topic}-0"' in tool("kafka-log-dirs", "--describe", "--topic-list", topic)


def test_preferred_leader_election_names_the_partition(topic: str) -> None:
    create(topic, 1)
    output = tool("kafka-leader-election", "--election-type", "preferred", "--topic", topic, "--partition", 0)
    assert f"{topic}-0" in output


def test_reassignment_is_executed_verified_and_listed(topic: str, tmp_path: Path) -> None:
    create(topic, 1)
    wanted = tmp_path / "reassignment.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [0]}]}))
    file = ("--reassignment-json-file", wanted)
    assert "Successfully started" in tool("kafka-reassign-partitions", *file, "--execute")
    assert "is completed" in tool("kafka-reassign-partitions", *file, "--verify")
    assert "No partition reassignments" in tool("kafka-reassign-partitions", "--list")


def test_metadata_quorum_has_a_leader() -> None:
    asked = ("--bootstrap-server", _BOOTSTRAP, "describe", "--status")
    assert "LeaderId:" in run(KAFKA_PROGRAMS["kafka-metadata-quorum"], *asked)


@pytest.mark.parametrize("feature", ["metadata.version", "transaction.version", "group.version"])
def test_features_are_described(feature: str) -> None:
    assert feature in run(KAFKA_PROGRAMS["kafka-features"], "--bootstrap-server", _BOOTSTRAP, "describe")


def test_share_group_reads_all_records_and_is_described(topic: str) -> None:
    create(topic, 2)
    alter_config("groups", topic, "--add-config", "share.auto.offset.reset=earliest")
    produce(topic, 300)
    options = ("--topic", topic, "--group-id", topic, "--max-messages", 300, "--acknowledgement-mode", "sync")
    events = _events(tool("kafka-verifiable-share-consumer", *options))
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 300
    assert topic in tool("kafka-share-groups", "--list").split()
    assert topic in tool("kafka-share-groups", "--describe", "--group", topic)


def test_console_share_consumer_reads_all_records(topic: str) -> None:
    create(topic, 1)
    alter_config("groups", topic, "--add-config", "share.auto.offset.reset=earliest")
    produce(topic, 20)
    options = ("--topic", topic, "--group", topic, "--max-messages", 20, "--timeout-ms", 15_000)
    lines = tool("kafka-console-share-consumer", *options).split()
    assert {int(line) for line in lines if line.isdigit()} >= set(range(20))


def test_streams_application_reset_names_its_input_topic(topic: str) -> None:
    create(topic, 1)
    produce(topic, 10)
    options = ("--application-id", topic, "--input-topics", topic, "--to-earliest")
    assert topic in tool("kafka-streams-application-reset", *options)

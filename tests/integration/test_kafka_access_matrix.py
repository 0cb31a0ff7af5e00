"""Access matrix of every Kafka call.

Each call is made in every version, with each kind of identity and ACL. Requests are made from the definitions of
Kafka's messages. ``ways`` is Kafka's documented table ("Operations and Resources on Protocols" in its security guide),
with the later changes by KIP-848, KIP-966 and KIP-1142.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from millrace.acls import AclOperation
from millrace.config.broker import BrokerConfig
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.kafka_protocol.lookup import request_class
from millrace.kafka_protocol.message import Message
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import RequestContext, known_error
from millrace_broker.kafka_api import KafkaState, kafka_calls
from millrace_broker.kafka_api.call import KafkaCall, KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.testing import EmbeddedBroker

from .access_broker import OPTIONS, Secured, codes, insufficient, sufficient
from .access_cases import ADMIN, ALICE, DENIED, Need, cluster, group, topic, transactional_id
from .waiting import AN_HOUR_MS, eventually

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

CALLS: Mapping[str, KafkaCall] = {each.name: each for each in kafka_calls(KafkaState(BrokerConfig.load({}))).values()}
VERSIONS = [
    pytest.param(call, version, id=f"{call.name}-{version}") for call in CALLS.values() for version in call.versions
]

NAMES = {
    "name": "orders",
    "topic": "orders",
    "topic_name": "orders",
    "topic_names": "orders",
    "subscribed_topic_names": "orders",
    "resource_name": "orders",
    "group_id": "workers",
    "group_ids": "workers",
    "groups": "workers",
    "groups_names": "gone",
    "key": "workers",
    "coordinator_keys": "workers",
    "transactional_id": "external",
    "transactional_ids": "external",
    "v3_and_below_transactional_id": "external",
    "principal": "User:alice",
    "host": "*",
}
"""Strings of requests by the names of their fields."""
OF_CALL: dict[str, dict[str, Any]] = {
    "DeleteTopics": {"name": "orders-gone", "topic_names": "orders-gone"},
    "ConsumerGroupHeartbeat": {"group_id": "beating"},
    "ConsumerGroupDescribe": {"group_ids": "consumers"},
    "ShareGroupHeartbeat": {"group_id": "sharers", "member_id": "m"},
    "ShareGroupDescribe": {"group_ids": "sharers"},
    "ShareFetch": {"group_id": "sharers", "member_id": "m", "acknowledgement_batches": ()},
    "ShareAcknowledge": {"group_id": "sharers", "member_id": "m"},
    "DescribeShareGroupOffsets": {"group_id": "sharers"},
    "AlterShareGroupOffsets": {"group_id": "resetters"},
    "DeleteShareGroupOffsets": {"group_id": "resetters"},
    "DescribeConfigs": {"resource_type": 2, "configuration_keys": None},
    "AlterConfigs": {"resource_type": 2},
    "IncrementalAlterConfigs": {"resource_type": 2},
    "SyncGroup": {"protocol_type": "consumer", "protocol_name": "range"},
    "ListGroups": {"states_filter": (), "types_filter": ()},
    "ListTransactions": {"state_filters": (), "producer_id_filters": (), "duration_filter": -1},
    "ListConfigResources": {"resource_types": ()},
    "Produce": {"acks": 1},
    "DescribeTopicPartitions": {"cursor": None, "response_partition_limit": 10},
}
"""Fields with other values in some calls."""
RESET = pb.AlterShareGroupOffsetsRequest(
    group_id="resetters",
    topics=[
        pb.AlterShareGroupOffsetsRequest.TopicOffsets(
            name="orders", partitions=[pb.AlterShareGroupOffsetsRequest.PartitionOffset(partition=0)]
        )
    ],
)
"""Request by which a share group without members has offsets."""


OPEN = (
    "ApiVersions",
    "SaslHandshake",
    "SaslAuthenticate",
    "GetTelemetrySubscriptions",
    "DescribeCluster",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
)
"""Calls that need no ACL. Those of delegation tokens need some for the tokens of other users."""
BY_SHARE_GROUP = {
    "ShareGroupHeartbeat": (group(READ, "sharers"), topic(DESCRIBE)),
    "ShareGroupDescribe": (group(DESCRIBE, "sharers"), topic(DESCRIBE)),
    "ShareFetch": (group(READ, "sharers"), topic(READ)),
    "ShareAcknowledge": (group(READ, "sharers"),),  # of topics only within a session
    "DescribeShareGroupOffsets": (group(DESCRIBE, "sharers"), topic(DESCRIBE)),
    "AlterShareGroupOffsets": (group(READ, "resetters"), topic(READ)),
    "DeleteShareGroupOffsets": (group(DELETE, "resetters"), topic(READ)),
}


def ways(call: str, version: int) -> tuple[tuple[Need, ...], ...]:
    """Return the sets of ACLs, each of which lets a request through."""
    by_cluster = {
        "ListConfigResources": DESCRIBE_CONFIGS,
        "DescribeLogDirs": DESCRIBE,
        "DescribeUserScramCredentials": DESCRIBE,
        "AlterUserScramCredentials": ALTER,
        "DescribeClientQuotas": DESCRIBE_CONFIGS,
        "AlterClientQuotas": ALTER_CONFIGS,
        "AlterReplicaLogDirs": ALTER,
        "ElectLeaders": ALTER,
        "AlterPartitionReassignments": ALTER,
        "ListPartitionReassignments": DESCRIBE,
        "DescribeAcls": DESCRIBE,
        "CreateAcls": ALTER,
        "DeleteAcls": ALTER,
    }
    by_topic = {
        "Fetch": READ,
        "ListOffsets": DESCRIBE,
        "Metadata": DESCRIBE,
        "DescribeTopicPartitions": DESCRIBE,
        "CreatePartitions": ALTER,
        "DeleteRecords": DELETE,
        "OffsetForLeaderEpoch": DESCRIBE,
        "DescribeConfigs": DESCRIBE_CONFIGS,
        "AlterConfigs": ALTER_CONFIGS,
        "IncrementalAlterConfigs": ALTER_CONFIGS,
        "DescribeProducers": READ,
    }
    by_group = {
        "FindCoordinator": DESCRIBE,
        "JoinGroup": READ,
        "SyncGroup": READ,
        "Heartbeat": READ,
        "LeaveGroup": READ,
        "DescribeGroups": DESCRIBE,
    }
    if call in BY_SHARE_GROUP:
        return (BY_SHARE_GROUP[call],)
    by_id = {"InitProducerId": WRITE, "EndTxn": WRITE, "DescribeTransactions": DESCRIBE, "ListTransactions": DESCRIBE}
    if call in by_cluster:
        return ((cluster(by_cluster[call]),),)
    if call in by_topic:
        return ((topic(by_topic[call]),),)
    if call in by_group:
        return ((group(by_group[call]),),)
    if call in by_id:
        return ((transactional_id(by_id[call]),),)
    return {
        **dict.fromkeys(OPEN, ((),)),
        "Produce": ((topic(WRITE), transactional_id(WRITE)) if version >= 3 else (topic(WRITE),),),
        "CreateTopics": ((topic(CREATE),), (cluster(CREATE),)),
        "DeleteTopics": ((topic(DELETE, "orders-gone"),),),
        "OffsetCommit": ((group(READ), topic(READ)),),
        "OffsetFetch": ((group(DESCRIBE), topic(DESCRIBE)),),
        "OffsetDelete": ((group(DELETE), topic(READ)),),
        "DeleteGroups": ((group(DELETE, "gone"),),),
        "ListGroups": ((group(DESCRIBE),), (cluster(DESCRIBE),)),
        "AddPartitionsToTxn": ((transactional_id(WRITE), topic(WRITE)) if version < 4 else (cluster(ACTION),),),
        "AddOffsetsToTxn": ((transactional_id(WRITE), group(READ)),),
        "TxnOffsetCommit": ((transactional_id(WRITE), group(READ), topic(READ)),),
        "WriteTxnMarkers": ((cluster(ALTER),), (cluster(ACTION),)),
        "ConsumerGroupHeartbeat": ((group(READ, "beating"), topic(DESCRIBE)),),
        "ConsumerGroupDescribe": ((group(DESCRIBE, "consumers"), topic(DESCRIBE)),),
    }[call]


def filled(message: type[Message], version: int, values: Mapping[str, Any], topic_id: UUID) -> Message:
    """Return a message with a name in each field for one, one element in each array, and zeros otherwise."""
    layouts = {
        each.name: each.metadata["layout"]
        for each in dataclasses.fields(message)  # type: ignore[arg-type]  # message classes are dataclasses
        if "layout" in each.metadata
    }
    present = {name: layout for name, layout in layouts.items() if version in layout.versions}
    fields: dict[str, Any] = {}
    for name, layout in present.items():
        if name in values and not (layout.kind == "struct" and isinstance(values[name], str)):
            fields[name] = (values[name],) if layout.is_array and isinstance(values[name], str) else values[name]
        elif layout.kind == "struct":
            element = filled(layout.element, version, values, topic_id)
            fields[name] = (element,) if layout.is_array else element
        elif layout.kind == "uuid":
            has_name = any(each in present for each in ("name", "topic"))
            value = NIL_UUID if has_name else topic_id
            fields[name] = (value,) if layout.is_array else value
        elif version in layout.nullable:
            fields[name] = None
        elif layout.is_array:
            fields[name] = (0,) if layout.kind.startswith("int") else ()
        elif layout.kind in ("string", "bytes"):
            fields[name] = "" if layout.kind == "string" else b""
    required = {
        each.name: 0
        for each in dataclasses.fields(message)  # type: ignore[arg-type]
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    empty = {
        name: () if layouts[name].is_array else {"string": "", "bytes": b"", "bool": False}.get(layouts[name].kind, 0)
        for name in required
    }
    return message(**{**empty, **fields})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with EmbeddedBroker(tmp_path_factory.mktemp("secured"), options=OPTIONS) as running:
        yield prepared(running)


def prepared(broker: EmbeddedBroker) -> Secured:
    """Make what the requests ask for."""
    found = Secured(broker)
    admin = found.by_admin
    found.create_orders()
    for kind, key in ((pb.GROUP, "workers"), (pb.TRANSACTION, "external")):
        admin("FindCoordinator", pb.FindCoordinatorRequest(key_type=kind, keys=[key]))
    init = pb.InitProducerIdRequest(
        transactional_id="external", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    assert not codes(admin("InitProducerId", init))
    commit = pb.OffsetCommitRequest(
        group_id="workers",
        generation_id=-1,
        topics=[pb.TopicCommits(name="orders", partitions=[pb.CommittedOffset(partition=0)])],
    )
    assert not codes(admin("OffsetCommit", commit))
    call = CALLS["ConsumerGroupHeartbeat"]
    values = {**NAMES, "group_id": "consumers"}
    values |= {"member_id": "m", "rebalance_timeout_ms": 60_000, "topic_partitions": ()}
    joined = filled(request_class(call.key), 1, values, NIL_UUID)
    answer = asked(found, call, joined, 1, ADMIN)
    assert not answer.error_code, answer
    sharing = pb.ShareGroupHeartbeatRequest(group_id="sharers", member_id="m", subscribed_topics=["orders"])
    admin("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.SHARE, keys=["sharers"]))
    assert not codes(admin("ShareGroupHeartbeat", sharing))
    eventually(lambda: not codes(admin("AlterShareGroupOffsets", RESET)), "the share group to be loaded")
    return found


def asked(secured: Secured, call: KafkaCall, message: Message, version: int, principal: Any) -> Any:
    """Return the response, as ``KafkaCall`` makes it."""

    async def handle(context: RequestContext) -> Any:
        read = request_class(call.key).decode(message.encode(version), version)
        try:
            return await call.handle(read, KafkaRequest(secured.broker, call.state, version, context))
        except Exception as error:  # noqa: BLE001 - as KafkaCall
            return call.refuse(read, version, code_of(known_error(error)))

    return secured.run(call.name, principal, handle)


def error_codes(found: Any) -> set[int]:
    """Return all error codes in a response."""
    if isinstance(found, tuple):
        return {code for each in found for code in error_codes(each)}
    if not isinstance(found, Message):
        return set()
    codes = set()
    for each in dataclasses.fields(found):  # type: ignore[arg-type]
        value = getattr(found, each.name)
        if each.name.endswith("error_code") and each.name != "topic_config_error_code":
            codes.add(value)
        else:
            codes |= error_codes(value)
    return codes


def is_refused(call: str, version: int, response: Any) -> bool:
    if call == "ListGroups":
        return "workers" not in {each.group_id for each in response.groups}
    if call == "ListTransactions":
        return "external" not in {each.transactional_id for each in response.transaction_states}
    if call == "DescribeLogDirs" and version < 3:  # these versions have no error
        return not response.results
    return bool(error_codes(response) & DENIED)


def request_of(secured: Secured, call: KafkaCall, version: int) -> Message:
    values = {**NAMES, **OF_CALL.get(call.name, {})}
    topic_id = secured.broker.catalog.topics["orders"].topic_id
    return filled(request_class(call.key), version, values, topic_id)


@pytest.mark.parametrize(("call", "version"), VERSIONS)
def test_the_right_acls_let_a_call_through(secured: Secured, call: KafkaCall, version: int) -> None:
    request = request_of(secured, call, version)
    for way in ways(call.name, version):
        for acls in sufficient(way):
            secured.allow(*acls)
            response = asked(secured, call, request, version, ALICE)
            assert not is_refused(call.name, version, response), (acls, response)


@pytest.mark.parametrize(("call", "version"), VERSIONS)
def test_nobody_else_gets_through(secured: Secured, call: KafkaCall, version: int) -> None:
    request = request_of(secured, call, version)
    for way in ways(call.name, version):
        for name, principal, acls in insufficient(way):
            secured.allow(*acls)
            response = asked(secured, call, request, version, principal)
            assert is_refused(call.name, version, response) or not way, (name, response)


def test_a_request_for_all_topics_has_only_those_that_may_be_described(secured: Secured) -> None:
    hidden = pb.NewTopic(name="hidden", num_partitions=1, replication_factor=1)
    secured.outcome("CreateTopics", pb.CreateTopicsRequest(topics=[hidden], timeout_ms=AN_HOUR_MS), ADMIN)
    for name, none in (("Metadata", None), ("DescribeTopicPartitions", ())):
        call = CALLS[name]
        version = call.versions[-1]
        request = dataclasses.replace(request_of(secured, call, version), topics=none)  # type: ignore[type-var]
        secured.allow(*next(sufficient([topic(DESCRIBE)])))
        assert {each.name for each in asked(secured, call, request, version, ALICE).topics} == {"orders"}
        secured.allow()
        assert asked(secured, call, request, version, ALICE).topics == ()


def test_a_topic_that_is_left_out_of_a_list_is_no_denial(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    secured.allow()
    for name, none in (("Metadata", None), ("DescribeTopicPartitions", ())):
        call = CALLS[name]
        request = dataclasses.replace(request_of(secured, call, call.versions[-1]), topics=none)  # type: ignore[type-var]
        with caplog.at_level(logging.INFO, "millrace.authorizer"):
            asked(secured, call, request, call.versions[-1], ALICE)
    assert "Denied" not in caplog.text


def test_the_name_of_a_resource_cannot_forge_a_line_of_the_log(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    secured.allow()
    forged = "x\nPrincipal = User:mallory is Allowed"
    call = CALLS["DescribeGroups"]
    request = dataclasses.replace(request_of(secured, call, 5), groups=(forged,))  # type: ignore[type-var]
    with caplog.at_level(logging.INFO, "millrace.authorizer"):
        asked(secured, call, request, 5, ALICE)
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert r"Group:x\nPrincipal = User:mallory is Allowed" in caplog.text


def test_without_the_right_to_a_group_a_client_learns_nothing_of_its_members(secured: Secured) -> None:
    call = CALLS["OffsetFetch"]
    request = request_of(secured, call, 9)
    (wanted,) = request.groups  # type: ignore[attr-defined]
    of_member = dataclasses.replace(wanted, group_id="consumers", member_id="guessed", member_epoch=7)
    by_member = dataclasses.replace(request, groups=(of_member,))  # type: ignore[type-var]
    secured.allow()
    assert asked(secured, call, by_member, 9, ALICE).groups[0].error_code == 30
    secured.allow(*next(sufficient([group(DESCRIBE, "consumers"), topic(DESCRIBE)])))
    assert asked(secured, call, by_member, 9, ALICE).groups[0].error_code == 25  # UNKNOWN_MEMBER_ID


def test_a_broker_that_its_listener_knows_needs_no_acl(secured: Secured) -> None:
    secured.allow()
    for name in ("DescribeLogDirs", "DescribeClientQuotas", "Produce", "ConsumerGroupDescribe"):
        call = CALLS[name]
        version = call.versions[-1]
        request = request_of(secured, call, version)

        async def handle(
            context: RequestContext, call: KafkaCall = call, request: Message = request, version: int = version
        ) -> Any:
            known = context._replace(is_broker=True)
            return await call.handle(request, KafkaRequest(secured.broker, call.state, version, known))

        assert not error_codes(secured.run(name, ALICE, handle)) & DENIED, name


def test_a_regular_expression_subscribes_to_topics_that_may_be_described(secured: Secured) -> None:
    hidden = pb.NewTopic(name="orders-hidden", num_partitions=1, replication_factor=1)
    secured.outcome("CreateTopics", pb.CreateTopicsRequest(topics=[hidden], timeout_ms=AN_HOUR_MS), ADMIN)
    call = CALLS["ConsumerGroupHeartbeat"]
    values = {**NAMES, "group_id": "expressions", "member_id": "m", "rebalance_timeout_ms": 60_000}
    values |= {"topic_partitions": (), "subscribed_topic_names": None, "subscribed_topic_regex": "orders.*"}
    joining = filled(request_class(call.key), 1, values, NIL_UUID)
    secured.allow(*next(sufficient([group(READ, "expressions"), topic(DESCRIBE)])))
    answer = asked(secured, call, joining, 1, ALICE)
    assert [each.topic_id for each in answer.assignment.topic_partitions] == [
        secured.broker.catalog.topics["orders"].topic_id
    ]


def test_the_name_of_an_id_is_not_disclosed(secured: Secured) -> None:
    topic_id = secured.broker.catalog.topics["orders"].topic_id
    secured.allow()
    for name, field in (("Metadata", "topics"), ("DeleteTopics", "responses")):
        call = CALLS[name]
        version = call.versions[-1]
        request = request_of(secured, call, version)
        (named,) = request.topics  # type: ignore[attr-defined]
        by_id = dataclasses.replace(named, name=None, topic_id=topic_id)
        asked_by_id = dataclasses.replace(request, topics=(by_id,))  # type: ignore[type-var]
        (found,) = getattr(asked(secured, call, asked_by_id, version, ALICE), field)
        assert (found.name, found.topic_id, found.error_code) == (None, topic_id, 29)


@pytest.mark.parametrize("name", ["DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"])
def test_the_id_of_a_name_is_not_disclosed(secured: Secured, name: str) -> None:
    """Not even the existence of a topic is."""
    call = CALLS[name]
    version = call.versions[-1]
    request = request_of(secured, call, version)
    topic_id = secured.broker.catalog.topics["orders"].topic_id
    (way,) = ways(name, version)
    for needs, is_told in ((way, True), (way[:1], False)):
        secured.allow(*next(sufficient(needs)))
        assert (f"{topic_id!r}" in repr(asked(secured, call, request, version, ALICE))) is is_told


def test_operations_are_told_as_they_are_allowed(secured: Secured) -> None:
    secured.allow(*next(sufficient([topic(WRITE), group(DELETE), cluster(ALTER_CONFIGS)])))
    metadata, cluster_call, groups = CALLS["Metadata"], CALLS["DescribeCluster"], CALLS["DescribeGroups"]

    def bits(*operations: AclOperation) -> int:
        return sum(1 << each for each in operations)

    request = dataclasses.replace(  # type: ignore[type-var]
        request_of(secured, metadata, 10),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    found = asked(secured, metadata, request, 10, ALICE)
    assert found.topics[0].topic_authorized_operations == bits(WRITE, DESCRIBE)
    described = dataclasses.replace(  # type: ignore[type-var]
        request_of(secured, cluster_call, 1), include_cluster_authorized_operations=True
    )
    answer = asked(secured, cluster_call, described, 1, ALICE)
    assert (found.cluster_authorized_operations, answer.cluster_authorized_operations) == (0, 0), "without DESCRIBE"
    secured.allow(*next(sufficient([topic(DESCRIBE), cluster(DESCRIBE), cluster(ALTER_CONFIGS)])))
    found = asked(secured, metadata, request, 10, ALICE)
    answer = asked(secured, cluster_call, described, 1, ALICE)
    told = {found.cluster_authorized_operations, answer.cluster_authorized_operations}
    assert told == {bits(DESCRIBE, ALTER_CONFIGS, DESCRIBE_CONFIGS)}
    secured.allow(*next(sufficient([group(DELETE), group(READ)])))
    of_groups = dataclasses.replace(  # type: ignore[type-var]
        request_of(secured, groups, 5), include_authorized_operations=True
    )
    group_told = asked(secured, groups, of_groups, 5, ALICE).groups[0]
    assert group_told.authorized_operations == bits(READ, DELETE, DESCRIBE), group_told

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordination.nodes import (
    BrokerNode,
    ClusterIdNode,
    ConfigNode,
    ControllerNode,
    Endpoint,
    PartitionStateNode,
    ProducerIdBlockNode,
    SchemaNode,
    TopicNode,
    TypedTopicNode,
    VersionRange,
    decode_epoch,
    encode_epoch,
)
from millrace.errors import StorageError

_INT32 = st.integers(0, 2**31 - 1)
_INT64 = st.integers(0, 2**63 - 1)
_REPLICAS = st.dictionaries(_INT32, st.lists(_INT32).map(tuple))
_ENDPOINTS = st.builds(
    Endpoint,
    st.from_regex(r"[A-Z_]{1,9}", fullmatch=True),
    st.sampled_from(["PLAINTEXT", "SSL", "SASL_SSL"]),
    st.text() | st.ip_addresses().map(str),
    st.integers(0, 65535),
)
_NODES = st.one_of(
    st.builds(ClusterIdNode, st.text()),
    st.builds(BrokerNode, host=st.text(), port=_INT32, rack=st.text(), timestamp_ms=_INT64),
    st.builds(
        BrokerNode.at,
        st.lists(_ENDPOINTS, min_size=1, max_size=3, unique_by=lambda each: each.listener).map(tuple),
        rack=st.text(),
        timestamp_ms=_INT64,
        features=st.dictionaries(st.text(), st.builds(VersionRange, _INT32, _INT32), max_size=2),
    ),
    st.builds(TopicNode, st.uuids(), _REPLICAS, _REPLICAS, _REPLICAS),
    st.builds(
        PartitionStateNode, controller_epoch=_INT32, leader=_INT32, leader_epoch=_INT32, isr=st.lists(_INT32).map(tuple)
    ),
    st.builds(ConfigNode, st.dictionaries(st.text(), st.text())),
    st.builds(ControllerNode, broker_id=_INT32, timestamp_ms=_INT64),
    st.builds(ProducerIdBlockNode, broker_id=_INT32, first=_INT64, last=_INT64),
    st.builds(SchemaNode, topic_id=st.uuids(), schema_version=_INT32, arrow_schema=st.binary()),
    st.builds(TypedTopicNode, st.lists(_INT32).map(tuple), st.lists(st.text()).map(tuple)),
)


@given(_NODES)
def test_every_node_is_read_as_it_was_written(node: ClusterIdNode) -> None:
    assert type(node).decode(node.encode()) == node


@given(st.binary(max_size=30) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_a_malformed_node_is_a_clear_error(data: bytes | str) -> None:
    encoded = data if isinstance(data, bytes) else data.encode()
    for node in (TopicNode, PartitionStateNode, SchemaNode, BrokerNode):
        with pytest.raises(StorageError, match=node.__name__):
            node.decode(encoded)


def test_nodes_have_kafkas_json() -> None:
    topic_id = uuid.UUID(int=1)
    assert TopicNode(topic_id, {0: (1, 2), 1: (2,)}).encode() == (
        b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":{"0":[1,2],"1":[2]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    assert PartitionStateNode(controller_epoch=26, leader=2, leader_epoch=0, isr=(2,)).encode() == (
        b'{"controller_epoch":26,"leader":2,"version":1,"leader_epoch":0,"isr":[2]}'
    )
    assert ConfigNode({"retention.ms": "1"}).encode() == b'{"version":1,"config":{"retention.ms":"1"}}'


@pytest.mark.parametrize(
    ("data", "endpoints", "rack"),
    [
        (
            b'{"jmx_port":9999,"timestamp":"1486516725492","host":"localhost","version":1,"port":9092}',
            (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),),
            "",
        ),
        (
            b'{"jmx_port":9999,"timestamp":"1486516725492","endpoints":["PLAINTEXT://localhost:9092"],'
            b'"host":"localhost","version":3,"port":9092,"rack":"dc1"}',
            (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),),
            "dc1",
        ),
        (
            b'{"listener_security_protocol_map":{"CLIENT":"SSL","REPLICATION":"PLAINTEXT"},"endpoints":'
            b'["CLIENT://host1:9092","REPLICATION://[::1]:9093"],"jmx_port":-1,"host":"::1","timestamp":"2233345666",'
            b'"port":9093,"version":5,"rack":null,"features":{"f":{"min_version":1,"max_version":3}},"new":[1]}',
            (Endpoint("CLIENT", "SSL", "host1", 9092), Endpoint("REPLICATION", "PLAINTEXT", "::1", 9093)),
            "",
        ),
        (
            b'{"listener_security_protocol_map":{"SSL":"SSL"},"endpoints":["SSL://a:1"],"jmx_port":-1,"host":null,'
            b'"timestamp":"1","port":-1,"version":4}',
            (Endpoint("SSL", "SSL", "a", 1),),
            "",
        ),
    ],
)
def test_brokers_of_other_versions_are_read(data: bytes, endpoints: tuple[Endpoint, ...], rack: str) -> None:
    node = BrokerNode.decode(data)
    assert (node.endpoints, node.rack) == (endpoints, rack)
    assert BrokerNode.decode(node.encode()) == node


def test_a_broker_without_plaintext_has_no_address_for_old_clients() -> None:
    node = BrokerNode.at((Endpoint("CLIENT", "SSL", "a", 1),), timestamp_ms=1)
    assert json.loads(node.encode()) == {
        "version": 5,
        "host": None,
        "port": -1,
        "listener_security_protocol_map": {"CLIENT": "SSL"},
        "endpoints": ["CLIENT://a:1"],
        "jmx_port": -1,
        "timestamp": "1",
        "features": {},
    }


def test_a_topic_node_has_the_replicas_that_a_reassignment_adds_and_removes() -> None:
    data = (
        b'{"removing_replicas":{"0":[1]},"partitions":{"0":[2,3,1],"1":[2]},"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ",'
        b'"adding_replicas":{"0":[2,3]},"version":3,"of_later_versions":{}}'
    )
    expected = TopicNode(uuid.UUID(int=1), {0: (2, 3, 1), 1: (2,)}, adding={0: (2, 3)}, removing={0: (1,)})
    assert TopicNode.decode(data) == expected


def test_the_controllers_epoch_is_a_number() -> None:
    assert decode_epoch(encode_epoch(26)) == 26
    with pytest.raises(StorageError, match="controller epoch"):
        decode_epoch(b"")


def test_the_controller_of_an_old_cluster_is_read() -> None:
    data = b'{"version":1,"brokerid":1,"timestamp":"1486464201250"}'
    assert ControllerNode.decode(data) == ControllerNode(broker_id=1, timestamp_ms=1486464201250)

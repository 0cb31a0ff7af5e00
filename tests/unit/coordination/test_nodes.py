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
    PartitionStateNode,
    ProducerIdBlockNode,
    SchemaNode,
    TopicNode,
    TypedTopicNode,
)
from millrace.errors import StorageError

_INT32 = st.integers(0, 2**31 - 1)
_INT64 = st.integers(0, 2**63 - 1)
_NODES = st.one_of(
    st.builds(ClusterIdNode, st.text()),
    st.builds(BrokerNode, host=st.text(), port=_INT32, rack=st.text(), timestamp_ms=_INT64),
    st.builds(TopicNode, st.uuids(), st.dictionaries(_INT32, st.lists(_INT32).map(tuple))),
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
def test_whatever_is_no_node_is_a_clear_error(data: bytes | str) -> None:
    encoded = data if isinstance(data, bytes) else data.encode()
    for node in (TopicNode, PartitionStateNode, SchemaNode, BrokerNode):
        with pytest.raises(StorageError, match=node.__name__):
            node.decode(encoded)


def test_the_json_is_kafkas() -> None:
    topic_id = uuid.UUID(int=1)
    assert TopicNode(topic_id, {0: (1, 2), 1: (2,)}).encode() == (
        b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":{"0":[1,2],"1":[2]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    assert PartitionStateNode(controller_epoch=26, leader=2, leader_epoch=0, isr=(2,)).encode() == (
        b'{"controller_epoch":26,"leader":2,"version":1,"leader_epoch":0,"isr":[2]}'
    )
    assert ConfigNode({"retention.ms": "1"}).encode() == b'{"version":1,"config":{"retention.ms":"1"}}'

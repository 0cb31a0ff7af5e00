from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordination.json_node import JsonNode
from millrace.coordination.notices import (
    ConfigChangeNode,
    LogDirEventNode,
    PreferredElectionNode,
    ReassignmentNode,
)
from millrace.errors import StorageError

_INT32 = st.integers(0, 2**31 - 1)
_PARTITION = st.tuples(st.text(), _INT32)
_PARTITIONS = st.lists(_PARTITION).map(tuple)
_NODES = st.one_of(
    st.builds(ReassignmentNode, st.dictionaries(_PARTITION, st.lists(_INT32).map(tuple))),
    st.builds(PreferredElectionNode, _PARTITIONS),
    st.builds(LogDirEventNode, _INT32),
    st.builds(ConfigChangeNode, st.text()),
)


@given(_NODES)
def test_every_notice_is_read_as_it_was_written(node: JsonNode) -> None:
    assert type(node).decode(node.encode()) == node  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("node", "data"),
    [
        (
            ReassignmentNode({("t", 0): (2, 3), ("t", 1): (1,)}),
            b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,3]},'
            b'{"topic":"t","partition":1,"replicas":[1]}]}',
        ),
        (
            PreferredElectionNode((("kafka-action", 1),)),
            b'{"version":1,"partitions":[{"topic":"kafka-action","partition":1}]}',
        ),
        (LogDirEventNode(3), b'{"version":1,"broker":3,"event":1}'),
        (ConfigChangeNode("topics/config-test"), b'{"version":2,"entity_path":"topics/config-test"}'),
    ],
)
def test_notices_have_kafkas_json(node: JsonNode, data: bytes) -> None:
    assert node.encode() == data  # type: ignore[attr-defined]
    assert type(node).decode(data[:-1] + b',"of_later_versions":[1]}') == node


def test_the_tool_writes_elections_without_a_version() -> None:
    data = b'{"partitions":[{"topic":"kafka-action","partition":1}]}'
    assert PreferredElectionNode.decode(data).partitions == (("kafka-action", 1),)


def test_changes_of_old_clusters_are_read() -> None:
    old = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    assert ConfigChangeNode.decode(old) == ConfigChangeNode("topics/t")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (ReassignmentNode, b'{"version":1,"partitions":[{"topic":"t","replicas":[2,3]}]}'),
        (ConfigChangeNode, b'{"version":3,"entity_path":"t"}'),
        (ConfigChangeNode, b'{"entity_path":"t"}'),
        (LogDirEventNode, b""),
    ],
)
def test_a_malformed_notice_is_a_clear_error(kind: type[JsonNode], data: bytes) -> None:
    with pytest.raises(StorageError, match=kind.__name__):
        kind.decode(data)

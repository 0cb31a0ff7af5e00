from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.coordination import paths
from millrace.coordination.tree import check_path


def test_paths_are_those_of_kafka() -> None:
    assert [
        paths.broker_path(1),
        paths.topic_path("t"),
        paths.partition_state_path("t", 0),
        paths.delete_topic_path("t"),
        paths.topic_config_path("t"),
        paths.config_path(paths.config_entity("users", "morton", "clients", "user-client-config")),
        paths.config_path(paths.config_entity("brokers", "2")),
        paths.CONFIG_CHANGE + "0000000007",
    ] == [
        "/brokers/ids/1",
        "/brokers/topics/t",
        "/brokers/topics/t/partitions/0/state",
        "/admin/delete_topics/t",
        "/config/topics/t",
        "/config/users/morton/clients/user-client-config",
        "/config/brokers/2",
        "/config/changes/config_change_0000000007",
    ]


@pytest.mark.parametrize(
    ("name", "written"),
    [("CN=a b,O=c", "CN%3Da%20b%2CO%3Dc"), ("a*~+", "a%2A%7E%2B"), ("a.b-c_d", "a.b-c_d"), ("é/", "%C3%A9%2F")],
)
def test_names_of_users_are_written_as_kafka_does(name: str, written: str) -> None:
    assert paths.sanitized(name) == written


@given(st.text(min_size=1).filter(lambda name: name not in (".", "..")))
def test_every_user_has_a_path(name: str) -> None:
    check_path(paths.config_path(paths.config_entity("users", name)))


def test_the_number_of_a_sequential_node_is_read_from_its_path() -> None:
    assert paths.sequence_of("/config/changes/config_change_0000000042") == 42
    assert paths.sequence_of("isr_change_0000000000") == 0

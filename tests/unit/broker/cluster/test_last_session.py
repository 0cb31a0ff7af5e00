"""Tests of the cleanup of a killed broker's ephemeral nodes.

The next start removes these nodes from ZooKeeper, and no others.
"""

from __future__ import annotations

from pathlib import Path

from millrace.coordination import Create, EmbeddedStore, Write, paths
from millrace.coordination.nodes import BrokerNode, ControllerNode, encode_epoch
from millrace_broker.cluster.last_session import last_session, remember_session, remove_leftovers
from millrace_broker.log import OsFiles
from millrace_broker.metadata import registration

NODE = BrokerNode(host="h", port=9001, rack="", timestamp_ms=0)
ELSEWHERE = BrokerNode(host="h", port=9002, rack="", timestamp_ms=0)


class Ensemble:
    """A store with the sessions of a killed and the next process."""

    def __init__(self) -> None:
        store = EmbeddedStore()
        self.killed, self.next, self.other = store.connect(), store.connect(), store.connect()
        registration.ensure_roots(self.next)
        self.next.create(paths.CONTROLLER_EPOCH, encode_epoch(0))
        registration.register(self.killed, 1, NODE)

    def has(self, path: str) -> bool:
        return self.next.exists(path) is not None


def elect(ensemble: Ensemble, broker_id: int) -> None:
    session = {1: ensemble.killed, 2: ensemble.other}[broker_id]
    node = Create(paths.CONTROLLER, ControllerNode(broker_id=broker_id, timestamp_ms=0).encode(), ephemeral=True)
    session.multi([node, Write(paths.CONTROLLER_EPOCH, encode_epoch(1), 0)])


def test_the_session_is_remembered_in_the_directory(tmp_path: Path) -> None:
    files = OsFiles()
    assert last_session(files, tmp_path) is None
    remember_session(files, tmp_path, 0x1000_0000_0001)
    remember_session(files, tmp_path, -3)  # ZooKeeper's session ids are signed
    assert last_session(files, tmp_path) == -3
    (tmp_path / "zookeeper-session").write_text("damaged")
    assert last_session(files, tmp_path) is None


def test_the_registration_and_the_controllers_node_of_the_killed_process_are_removed() -> None:
    ensemble = Ensemble()
    elect(ensemble, 1)
    assert remove_leftovers(ensemble.next, ensemble.killed.session_id, 1, NODE)
    assert not ensemble.has(paths.broker_path(1))
    assert not ensemble.has(paths.CONTROLLER)
    assert registration.register(ensemble.next, 1, NODE) > 0, "the broker need not wait"


def test_another_controller_stays() -> None:
    ensemble = Ensemble()
    elect(ensemble, 2)
    assert remove_leftovers(ensemble.next, ensemble.killed.session_id, 1, NODE)
    assert ensemble.has(paths.CONTROLLER)


def test_a_registration_of_another_session_or_address_stays() -> None:
    # The directories may be a copy of those of a broker that runs elsewhere.
    ensemble = Ensemble()
    assert not remove_leftovers(ensemble.next, ensemble.other.session_id, 1, NODE)
    assert not remove_leftovers(ensemble.next, ensemble.killed.session_id, 1, ELSEWHERE)
    assert ensemble.has(paths.broker_path(1))

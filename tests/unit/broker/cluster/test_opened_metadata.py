"""Tests of the start of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import EmbeddedStore
from millrace_broker.cluster.opened_metadata import open_metadata
from millrace_broker.log import OsFiles
from millrace_broker.runtime import SystemClock
from millrace_broker.security import ACL_AUTHORIZER


def test_a_broker_warns_at_its_start_of_a_zookeeper_that_everyone_can_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig.load({"zookeeper.connect": "203.0.113.7:2181", "authorizer.class.name": ACL_AUTHORIZER})
    store, clock = EmbeddedStore(), SystemClock()
    open_metadata(config, directories=[tmp_path / "data"], files=OsFiles(), clock=clock, store=store).close()
    assert "does not authenticate to ZooKeeper at 203.0.113.7:2181" in caplog.text

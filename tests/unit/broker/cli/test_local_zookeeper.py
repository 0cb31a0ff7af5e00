"""Tests of ZooKeeper for development, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import EnvironmentProblemError
from millrace_broker.cli.local_zookeeper import JARS_VARIABLE, LocalZooKeeper


def test_a_zookeeper_that_cannot_demand_authentication_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zookeeper-3.6.4.jar").touch()
    (tmp_path / "zookeeper-jute-3.6.4.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    server = LocalZooKeeper(tmp_path / "zookeeper", tmp_path / "jaas.conf")
    with pytest.raises(EnvironmentProblemError, match=r"zookeeper-3\.6\.4\.jar cannot demand .* 3\.7 or later"):
        server.start()
    assert not (tmp_path / "zookeeper").exists()

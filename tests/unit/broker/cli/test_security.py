"""Tests of the output of ``millrace security``."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.main import main
from millrace_broker.cli.cluster import _warn_of_open_metadata
from millrace_broker.cli.security_directory import Place, SecurityDirectory

from ....integration.documented import ROOT

HINT = "everyone who reaches ZooKeeper at zk.example:2181/millrace can change users and ACLs there, unless brokers"


def test_files_for_several_machines_come_with_a_hint_about_zookeeper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--broker", "b1.example", "--broker", "b2.example", "--zookeeper", "zk.example:2181/millrace"]
    assert main(["security", "init", "--directory", str(tmp_path / "security"), *arguments]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert HINT in printed
    assert "set zookeeper.sasl.* or zookeeper.ssl.*, and zookeeper.set.acl=true, in" in printed
    title, page = printed.partition('("')[2].rstrip(")").split('" in ')
    assert f"\n## {title}\n" in (ROOT / page).read_text("utf-8")


def test_a_broker_alone_needs_no_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["security", "init", "--directory", str(tmp_path / "security")]) == 0
    assert "ZooKeeper" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [
        ({}, True),
        ({"zookeeper.sasl.mechanism": "GSSAPI"}, False),
        ({"zookeeper.ssl.keystore.location": "broker-1.pem"}, True),
        ({"zookeeper.ssl.client.enable": "true"}, True),
        ({"zookeeper.ssl.client.enable": "True", "zookeeper.ssl.keystore.location": "broker-1.pem"}, False),
    ],
)
def test_a_secure_cluster_on_another_zookeeper_says_how_brokers_authenticate_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, str], is_warned: bool
) -> None:
    security = SecurityDirectory.at(tmp_path / "security")
    security.create([Place("localhost", 9092)], [], days=1)
    _warn_of_open_metadata(security, {"zookeeper.connect": "zk.example:2181/millrace", **options})
    assert (HINT in capsys.readouterr().err) is is_warned

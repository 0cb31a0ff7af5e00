"""Tests of the page of Kafka clients.

The page's programs in Python run as they stand, with the versions that the page names.
"""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from millrace_broker.testing import EmbeddedBroker

from ..compat import install
from ..compat.clients import PAGE, Case, cases
from .waiting import STALL_S

BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0"}
_CLIENT = re.compile(r"^\| \[([^]]+)\]\(#[\w-]+\) ([\d., ]+?) \|", re.MULTILINE)
_OF_KAFKA = {"Kafka's tools", "Kafka Connect", "MirrorMaker"}
"""Programs of the Kafka that ``make compat`` installs."""


@pytest.mark.timeout(STALL_S)  # a program polls until it has read all records
@pytest.mark.parametrize("case", [each for each in cases() if each.is_python], ids=lambda case: case.name)
def test_a_program_of_the_page_runs_as_it_stands(case: Case, module_broker: EmbeddedBroker) -> None:
    program = case.python.replace("localhost:9092", module_broker.bootstrap_servers)
    exec(compile(program, "docs/kafka-clients.md", "exec", dont_inherit=True), {"__name__": "__main__"})


def test_each_client_of_the_page_has_a_program_with_its_version() -> None:
    sections = {case.name: case for case in cases()}
    clients = _CLIENT.findall(PAGE.read_text(encoding="utf-8"))
    assert {name for name, _ in clients} == set(sections)
    for name, versions in clients:
        case = sections[name]
        for version in versions.split(", "):
            if case.is_python:
                assert version == importlib.metadata.version(name)
            elif name in _OF_KAFKA:
                assert version == install.KAFKA_VERSION
            else:
                assert version in case.text

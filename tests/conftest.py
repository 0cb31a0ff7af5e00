"""What tests of every part share: real brokers, and the dials that turn a test up for a soak.

A test that kills or generates takes its number of rounds from a *dial*, an environment variable of ``DIALS``:
``@pytest.mark.dial("LOG_KILL_ROUNDS", seconds=2)`` gives the fixture ``rounds``, and the test's time limit grows by so
many seconds with each round, and by the minutes of a variable that the mark names as ``minutes``. ``make soak``
(``tests/soak.py``) turns the dials all up. Other variables that tests know:

* ``ORACLES``: directory of the conformance cases (default: ``tests/oracles``)
* ``DEMO_KILL_SEED``, ``HISTORY_SEED``, ``FAULT_SEED``, ``REPLICA_KILL_SEED``, ``SINK_KILL_SEED``, ``DELTA_KILL_SEED``,
  ``STREAMS_KILL_SEED``, ``REBUILD_KILL_SEED``, ``LOG_CRASH_SEED``, ``COORDINATOR_CRASH_SEED``: repeat a kill test of
  the demo, clients, a cluster, its replicas, Spark's sink, jobs into Delta, a topology, a rebuild, a crash of logs, of
  coordinators: a failing run prints it
* ``SPARK_CASE_RUNNERS``: 2 runs each case of Kafka Streams on both Spark runners; else they take turns
* ``FUZZ_CASES``, ``FUZZ_SEED``, ``FUZZ_FIRST``: how many cases the decoders are fuzzed with, and which
* ``--hypothesis-profile=soak``: property tests draw other examples each time, and more where they do not say how many;
  else the same ones, for a change to be judged by what it changes
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from millrace_broker.embedded import EmbeddedBroker

# Deadlines per example fail on a busy machine; pytest's own time limit stays. A failure prints what replays it.
settings.register_profile("millrace", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("soak", settings.get_profile("millrace"), derandomize=False, max_examples=2000)
settings.load_profile("millrace")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A real broker on loopback with an empty data directory; ``broker.bootstrap_servers`` is what clients take."""
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture(scope="module")
def module_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker shared by the tests of a module, which may name its ``BROKER_OPTIONS``: each uses topics of its own."""
    options = getattr(request.module, "BROKER_OPTIONS", None)
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


DIALS = {
    "DEMO_KILL_ROUNDS": 2,
    "LOG_KILL_ROUNDS": 20,
    "BROKER_KILL_ROUNDS": 4,
    "LOG_CRASH_ROUNDS": 15,
    "COORDINATOR_CRASH_ROUNDS": 10,
    "LOG_FLIP_ROUNDS": 300,
    "CLUSTER_SIM_SEEDS": 300,
    "HISTORY_KILL_ROUNDS": 10,
    "FAULT_ROUNDS": 3,
    "REPLICA_KILL_ROUNDS": 2,
    "SINK_KILL_ROUNDS": 3,
    "DELTA_KILL_ROUNDS": 2,
    "STREAMS_KILL_ROUNDS": 1,
    "REBUILD_KILL_ROUNDS": 1,
    "GENERATED_TOPOLOGIES": 16,
    "STATE_ROUNDS": 2,
}
"""Rounds of the tests that can be turned up, as ``make test`` runs them."""

TIMEOUT_SECONDS = 300


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "dial(name, seconds, minutes): takes its number of rounds from the dial of this name"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that is turned up may take longer."""
    for item in items:
        if (dial := item.get_closest_marker("dial")) is not None:
            limit = TIMEOUT_SECONDS + dial.kwargs["seconds"] * dial_value(dial.args[0])
            minutes = float(os.environ.get(dial.kwargs.get("minutes", ""), "0"))
            item.add_marker(pytest.mark.timeout(limit + 60 * minutes))


def dial_value(name: str) -> int:
    """Where a dial stands."""
    return int(os.environ.get(name, DIALS[name]))


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How many rounds a test with the mark ``dial`` is to run."""
    return dial_value(request.node.get_closest_marker("dial").args[0])

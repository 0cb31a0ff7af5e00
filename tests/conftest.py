"""Fixtures and settings of all tests.

The fixtures are real brokers. The settings are dials, tiers and random seeds.

A test that kills or generates takes its number of rounds from a *dial*, an environment variable of ``DIALS``.
``@pytest.mark.dial("LOG_KILL_ROUNDS", seconds=2)`` gives the fixture ``rounds``. The test's time limit grows by so many
seconds with each round, and by the minutes of a variable that the mark names as ``minutes``. ``make soak``
(``tests/soak.py``) sets all dials higher. Tests use these variables too:

* ``ORACLES``: directory of the conformance cases (default: ``tests/oracles``)
* ``DEMO_KILL_SEED``, ``HISTORY_SEED``, ``FAULT_SEED``, ``REPLICA_KILL_SEED``, ``SINK_KILL_SEED``, ``DELTA_KILL_SEED``,
  ``STREAMS_KILL_SEED``, ``REBUILD_KILL_SEED``, ``LOG_CRASH_SEED``, ``COORDINATOR_CRASH_SEED``: repeat a kill test. In
  this order they are for the demo, clients, a cluster, its replicas, Spark's sink, jobs into Delta, a topology, a
  rebuild, a crash of logs, and a crash of coordinators. A failed run prints its seed.
* ``SPARK_CASE_RUNNERS``: 2 runs each case of Kafka Streams on both Spark runners. Otherwise the cases alternate.
* ``CLEAN_INSTALLS``: pip installs the wheel and the sdist with their dependencies into clean environments
* ``KAFKA_STREAMS_SCRIPTS``, ``KAFKA_STREAMS_SEED``: number and choice of random scripts for Kafka Streams, by Maven
* ``SITE_WIDTHS``: the pages of the documentation site are opened in Chromium, which must be installed
* ``FUZZ_CASES``, ``FUZZ_SEED``, ``FUZZ_FIRST``: the number and the choice of the cases for fuzzed decoders

Marks define tiers. ``make quick`` runs the tests without ``broker`` (which the folders ``integration`` and
``histories`` have), ``spark`` and ``slow``. Property tests draw 25 examples in it, if they name no number.
``make test`` runs all tests, and the files with the longest recorded durations first (``tests/durations.py``).
Tests wait by ``tests/integration/waiting.py``, as long as there is progress.

Random tests draw other cases at each run, so that repeated runs of the suite cover more cases.

* A property test (Hypothesis) that fails prints the smallest failing example and a line ``@reproduce_failure(...)``,
  which repeats it in any clone. Failing examples are also kept in ``.hypothesis/examples``, and the next run there
  begins with them until they pass. ``--hypothesis-seed=<n>`` fixes the examples of a whole run.
  A test that exceeds its time limit prints the seed for that.
* A test with the fixture ``seed`` prints ``TEST_SEED=<n>`` when it fails. The same variable repeats it.
* ``--randomly-seed=<n>``, from the head of a run's output, repeats the order of the tests and every ``TEST_SEED``. It
  does not change the examples of Hypothesis.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from millrace.records import BatchHeader, crc_matches
from millrace.records.compiled import load_loops
from millrace.records.header import ReadableBuffer
from millrace_broker.testing import EmbeddedBroker

from . import planted_secrets
from .distribution import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from .durations import Recorder, longest_first
from .jvm import use_short_lived_jvms
from .planted_secrets import finest_log as finest_log

EXAMPLES = (
    Path(os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY") or Path(__file__).parents[1] / ".hypothesis") / "examples"
)
"""The directory of failing examples of property tests. ``make clean`` keeps it."""

# Deadlines for each example fail on a busy machine. Pytest's own time limit stays. Hypothesis derandomizes its own
# profile if the variable CI is set, so all of these settings are named here.
settings.register_profile(
    "millrace",
    deadline=None,
    derandomize=False,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(EXAMPLES),
)
settings.register_profile("quick", settings.get_profile("millrace"), max_examples=25)
settings.register_profile("soak", settings.get_profile("millrace"), max_examples=2000)
settings.load_profile("millrace")


@pytest.fixture
def seed() -> int:
    """Return a seed for a test's own random numbers.

    It differs at each run and for each parameter, and a failure prints it.
    """
    drawn = int(os.environ.get("TEST_SEED") or random.getrandbits(32))
    print(f"TEST_SEED={drawn} repeats this")
    return drawn


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the positions of batches whose checksums are verified from now on, one for each verification."""
    positions: list[int] = []

    def observed(buffer: ReadableBuffer, position: int, header: BatchHeader) -> bool:
        positions.append(position)
        return crc_matches(buffer, position, header)

    monkeypatch.setattr("millrace.records.scan.crc_matches", observed)
    return positions


NO_RETENTION_CHECKS = {"log.initial.task.delay.ms": str(2**31 - 1)}
"""Broker options without automatic retention checks, which could otherwise run between any two lines of a test."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Start a real broker on loopback with an empty data directory. Clients use ``broker.bootstrap_servers``."""
    with EmbeddedBroker(tmp_path / "broker", options=NO_RETENTION_CHECKS) as running:
        yield running


@pytest.fixture(scope="module")
def module_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Start a broker that a module's tests share.

    The module may set ``BROKER_OPTIONS``, and each test uses its own topics.
    """
    options = NO_RETENTION_CHECKS | getattr(request.module, "BROKER_OPTIONS", {})
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


DIALS = {
    "DEMO_KILL_ROUNDS": 2,
    "LOG_KILL_ROUNDS": 20,
    "BROKER_KILL_ROUNDS": 4,
    "LOG_CRASH_ROUNDS": 15,
    "COORDINATOR_CRASH_ROUNDS": 10,
    "LOG_FLIP_ROUNDS": 300,
    "CLUSTER_SIM_SEEDS": 40,
    "HISTORY_KILL_ROUNDS": 10,
    "FAULT_ROUNDS": 3,
    "KAFKA_FAULT_ROUNDS": 2,
    "REPLICA_KILL_ROUNDS": 2,
    "SINK_KILL_ROUNDS": 3,
    "DELTA_KILL_ROUNDS": 2,
    "STREAMS_KILL_ROUNDS": 1,
    "REBUILD_KILL_ROUNDS": 1,
    "GENERATED_TOPOLOGIES": 16,
    "STATE_ROUNDS": 2,
    "ROTATION_ROUNDS": 5,
}
"""The number of rounds of each dial in ``make test``."""

TIMEOUT_SECONDS = 1200


WITH_PROCESSES = {"integration", "histories"}
"""The folders whose tests have the mark ``broker``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json anew")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "dial(name, seconds, minutes): takes its number of rounds from the dial of this name"
    )
    use_short_lived_jvms()
    # As in Spark's workers. With more threads the tests of Streams need a fifth more CPU time, and are no faster.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    # Of the stacks of all threads Python prints a hundred, perhaps without that of the thread that crashed.
    faulthandler.enable(os.dup(2), all_threads=False)
    planted_secrets.pytest_configure(config)
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_collection_finish() -> None:
    """Take modules and tests out of garbage collections, which otherwise need 3 % of the unit tests' time for them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that start brokers, extend the time limit of tests with dials, and begin with the longest files."""
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)
    for item in items:
        if WITH_PROCESSES & set(item.path.relative_to(config.rootpath).parts):
            item.add_marker("broker")
        if (dial := item.get_closest_marker("dial")) is not None:
            limit = TIMEOUT_SECONDS + dial.kwargs["seconds"] * dial_value(dial.args[0])
            minutes = float(os.environ.get(dial.kwargs.get("minutes", ""), "0"))
            item.add_marker(pytest.mark.timeout(limit + 60 * minutes))


def dial_value(name: str) -> int:
    """Return the value of a dial."""
    return int(os.environ.get(name, DIALS[name]))


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """Return the number of rounds of a test with the mark ``dial``."""
    return dial_value(request.node.get_closest_marker("dial").args[0])


@pytest.fixture(autouse=True, scope="session")
def _compiled_loops() -> None:
    """Load the compiled loops first, so that no test depends on when a thread has loaded them."""
    load_loops()

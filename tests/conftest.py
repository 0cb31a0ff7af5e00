"""What tests of every part share: real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from millrace_broker.embedded import EmbeddedBroker

# Deadlines per example fail on a busy machine; pytest's own time limit stays. A failure prints what replays it.
settings.register_profile("millrace", deadline=None, print_blob=True)
settings.load_profile("millrace")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A real broker on loopback with an empty data directory; ``broker.bootstrap_servers`` is what clients take."""
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker shared by the tests of a module: each uses topics of its own names."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running

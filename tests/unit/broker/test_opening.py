"""Tests of a broker's start.

After a start all parts of the broker run, or none is left.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.errors import EnvironmentProblemError, StorageError
from millrace_broker import opening
from millrace_broker.opening import open_broker

ENDPOINTS = {"PLAINTEXT": Listener("127.0.0.1", 1)}


def _fails(*_: Any, **__: Any) -> NoReturn:
    raise StorageError("it cannot be read")


@pytest.mark.parametrize("part", ["BrokerConfigs", "LogManager.open", "GroupConfigs", "TopicChanges", "ShardFactory"])
def test_a_start_that_fails_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    config = BrokerConfig.load({"log.dirs": str(tmp_path)})
    before = set(threading.enumerate())  # handles of other tests, and those that a process keeps

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(f"{opening.__name__}.{part}", _fails)
            with pytest.raises(StorageError, match="it cannot be read"):
                await open_broker(config, endpoints=ENDPOINTS)
        left = [each.name for each in set(threading.enumerate()) - before if each.name.startswith("millrace-")]
        assert left == []
        broker = await open_broker(config, endpoints=ENDPOINTS)  # no lock is left
        with pytest.raises(EnvironmentProblemError):
            await open_broker(config, endpoints=ENDPOINTS)
        await broker.close()

    asyncio.run(scenario())


def test_a_broker_that_was_never_announced_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(2):
            broker = await open_broker(BrokerConfig.load({"log.dirs": str(tmp_path)}), endpoints=ENDPOINTS)
            assert broker.statistics().topics == 0
            await broker.close()

    asyncio.run(scenario())

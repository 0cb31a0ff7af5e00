"""Tests of a connection's wait for its client's quotas."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from millrace_broker.listeners import quota_wait
from millrace_broker.listeners.quota_wait import QuotaWait

from ....integration.waiting import STALL_S


class Transport:
    """The part of a transport that a wait uses."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.is_aborted = asyncio.Event()

    def get_extra_info(self, name: str) -> Any:
        assert name == "socket"
        return self._sock

    def abort(self) -> None:
        self.is_aborted.set()


def test_a_wait_ends_when_nothing_is_left() -> None:
    async def scenario() -> None:
        ended = asyncio.Event()
        left = [0.01, 0.01, 0.0]
        near, far = socket.socketpair()
        with near, far:
            transport = Transport(near)
            QuotaWait(asyncio.get_running_loop()).start(
                lambda: left.pop(0), ended.set, cast(asyncio.Transport, transport)
            )
            await asyncio.wait_for(ended.wait(), STALL_S)
            assert not transport.is_aborted.is_set()

    asyncio.run(scenario())


def test_a_watched_connection_is_aborted_if_its_peer_has_closed_it_though_bytes_are_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quota_wait, "_LOOKED_AGAIN_S", 0.01)

    async def scenario() -> None:
        ended, looked = asyncio.Event(), asyncio.Semaphore(0)

        def left_s() -> float:
            looked.release()
            return 1000.0

        near, far = socket.socketpair()
        with near, far:
            transport = Transport(near)
            QuotaWait(asyncio.get_running_loop()).start(left_s, ended.set, cast(asyncio.Transport, transport))
            for _ in range(3):
                await looked.acquire()
            assert not transport.is_aborted.is_set()
            far.sendall(b"a request that is not read")
            far.close()
            await asyncio.wait_for(transport.is_aborted.wait(), STALL_S)
        assert not ended.is_set()

    asyncio.run(scenario())


def test_a_connection_that_is_not_watched_outlives_its_peer() -> None:
    async def scenario() -> None:
        ended = asyncio.Event()
        left = [0.01, 0.01, 0.0]
        near, far = socket.socketpair()
        with near:
            far.sendall(b"a request without a response")
            far.close()
            QuotaWait(asyncio.get_running_loop()).start(lambda: left.pop(0), ended.set)
            await asyncio.wait_for(ended.wait(), STALL_S)

    asyncio.run(scenario())

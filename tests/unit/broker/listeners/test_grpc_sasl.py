"""Tests of SASL over gRPC.

The number of messages that the broker receives at a time is limited.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.config.security_options import ListenerSecurity
from millrace.errors import RequestTimedOutError
from millrace.protocol import grpc_sasl
from millrace_broker.listeners import grpc_sasl as sasl_calls
from millrace_broker.listeners.grpc_sasl import _READS_MAX, GrpcSessions
from millrace_broker.security.sasl import Logins, SaslAccess, SaslConversation

from ....integration.waiting import eventually_async
from ....planted_secrets import planted

OPTIONS = ListenerSecurity.load(
    {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": f'PlainLoginModule required user_alice="{planted("alice")}";',
    }
)
LOGINS = Logins(lambda *_: None, lambda *_: None, lambda *_: None)


class Call:
    """A call whose message arrives when the test lets it."""

    def __init__(self, reading: list[Call]) -> None:
        self._reading = reading
        self.has_arrived = asyncio.Event()
        self.session = ""

    def invocation_metadata(self) -> Any:
        return ((grpc_sasl.MECHANISM_KEY, "PLAIN"),)

    async def read(self) -> bytes:
        self._reading.append(self)
        await self.has_arrived.wait()
        self._reading.remove(self)
        return f"\0alice\0{planted('alice')}".encode()

    async def write(self, message: bytes) -> None:
        assert message == b""

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.session = dict(metadata)[grpc_sasl.SESSION_KEY]


def test_messages_beyond_the_limit_are_received_after_the_earlier_ones() -> None:
    async def run() -> None:
        sessions, reading = GrpcSessions(), list[Call]()
        calls = [Call(reading) for _ in range(3 * _READS_MAX)]
        async with asyncio.TaskGroup() as group:
            for call in calls:
                conversation = SaslConversation(
                    lambda: SaslAccess(OPTIONS, None), LOGINS, asyncio.get_running_loop().time
                )
                group.create_task(sessions.exchange(conversation, call, "10.0.0.1"))
            for call in calls:
                while call not in reading:
                    await asyncio.sleep(0)
                assert len(reading) <= _READS_MAX
                call.has_arrived.set()
        assert all(call.session for call in calls)

    asyncio.run(run())


async def _exchange(sessions: GrpcSessions, call: Call, host: str) -> None:
    await sessions.exchange(
        SaslConversation(lambda: SaslAccess(OPTIONS, None), LOGINS, asyncio.get_running_loop().time), call, host
    )


def test_silent_calls_of_a_host_do_not_keep_other_hosts_from_authenticating(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sasl_calls, "_READ_S", 0.01)

    async def run() -> None:
        sessions, reading = GrpcSessions(), list[Call]()
        silent = [asyncio.create_task(_exchange(sessions, Call(reading), "10.0.0.1")) for _ in range(50 * _READS_MAX)]
        await eventually_async(lambda: len(reading) == _READS_MAX)
        call = Call(reading)
        call.has_arrived.set()
        await _exchange(sessions, call, "10.0.0.2")
        assert call.session
        given_way = [task for task in silent if task.done()]
        assert 1 <= len(given_way) <= 3 * _READS_MAX
        assert all(isinstance(task.exception(), RequestTimedOutError) for task in given_way)
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)
        assert sessions._reads._reading == 0
        assert not sessions._reads.are_wanted

    asyncio.run(run())
    assert "a client at 10.0.0.1 gives way: it sent no message of SASL" in caplog.text


def test_a_slow_client_authenticates_while_no_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_calls, "_READ_S", 0.0)

    async def run() -> None:
        sessions, reading = GrpcSessions(), list[Call]()
        call = Call(reading)
        exchange = asyncio.create_task(_exchange(sessions, call, "10.0.0.1"))
        await eventually_async(lambda: reading)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not exchange.done()
        call.has_arrived.set()
        await exchange
        assert call.session

    asyncio.run(run())

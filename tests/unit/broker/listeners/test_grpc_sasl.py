"""SASL over gRPC: the number of messages that are received at a time is limited."""

from __future__ import annotations

import asyncio
from typing import Any

from millrace.config.security_options import ListenerSecurity
from millrace.protocol import grpc_sasl
from millrace_broker.listeners.grpc_sasl import _READS_MAX, GrpcSessions
from millrace_broker.security.sasl import Logins, SaslConversation

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
                conversation = SaslConversation(OPTIONS, LOGINS, None, asyncio.get_running_loop().time)
                group.create_task(sessions.exchange(conversation, call))
            for call in calls:
                while call not in reading:
                    await asyncio.sleep(0)
                assert len(reading) <= _READS_MAX
                call.has_arrived.set()
        assert all(call.session for call in calls)

    asyncio.run(run())

"""Tests of a client's attempts to reach a broker.

The tests check the order of the brokers, and the end of the attempts.
"""

from __future__ import annotations

from typing import Any

import pytest

from millrace.clients.connections import Connections
from millrace.clients.transport.calls import not_reached
from millrace.config.client import ClientConfig
from millrace.errors import MillraceError, RequestTimedOutError
from millrace.protocol import millrace_pb2 as pb

DEAD, ALSO_DEAD, ALIVE = "a:1", "b:1", "c:1"
ADDRESSES = f"{DEAD},{ALSO_DEAD},{ALIVE}"


class Scripted(Connections):
    """Connections to brokers whose outcome a test sets.

    The outcome is an error, or none for an answer.
    """

    def __init__(self, outcomes: dict[str, MillraceError], **options: Any) -> None:
        named = {name.replace("_", "."): value for name, value in options.items()}
        super().__init__(ClientConfig.of({"bootstrap.servers": ADDRESSES, "retry.backoff.ms": 5, **named}))
        self.outcomes = outcomes
        self.asked: list[str] = []

    def _send(self, call: Any, request: Any, target: str, timeout_s: float) -> Any:
        self.asked.append(target)
        if (error := self.outcomes.get(target)) is not None:
            raise error
        return pb.MetadataResponse()

    def ask(self, **options: Any) -> list[str]:
        """Make a call, and return the brokers that it asked."""
        self.asked = []
        self.call(lambda stub: stub.Metadata, pb.MetadataRequest(), **options)
        return self.asked


def test_a_call_fails_only_after_each_broker_was_asked() -> None:
    outcomes = {address: not_reached(address, "it hangs") for address in (DEAD, ALSO_DEAD)}
    connections = Scripted(outcomes, socket_connection_setup_timeout_ms=1)
    assert connections.ask() == [DEAD, ALSO_DEAD, ALIVE]
    assert connections.ask() == [ALIVE]
    outcomes[ALIVE] = not_reached(ALIVE, "it hangs")
    with pytest.raises(MillraceError, match="it hangs"):
        connections.ask()
    assert sorted(connections.asked) == [DEAD, ALSO_DEAD, ALIVE]


@pytest.mark.parametrize("error", [not_reached(DEAD, "it hangs"), RequestTimedOutError("it hangs")])
def test_the_call_after_one_that_timed_out_begins_with_another_broker(error: MillraceError) -> None:
    connections = Scripted({DEAD: error})
    with pytest.raises(type(error)):
        connections.ask(timeout_ms=1)
    assert connections.asked == [DEAD]
    assert connections.ask(timeout_ms=1) == [ALSO_DEAD]


def test_a_failure_of_a_given_broker_leaves_the_order_of_the_others() -> None:
    connections = Scripted({ALIVE: RequestTimedOutError("it hangs")})
    with pytest.raises(RequestTimedOutError):
        connections.ask(address=ALIVE, timeout_ms=1)
    assert connections.ask() == [DEAD]

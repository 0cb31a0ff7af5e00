"""Tests of the listener for gRPC.

The tests cover the description of a client in gRPC's terms, and the options of the server.
"""

import resource

import pytest

from millrace.config.broker import BrokerConfig
from millrace_broker.api import ClientAddress
from millrace_broker.listeners.grpc_server import _options, client_address, client_id_of

PYTHON = "grpc-python-asyncio/1.85.1 grpc-c/58.0.0 (linux; chttp2)"


@pytest.mark.parametrize(
    ("user_agent", "client_id"),
    [
        (PYTHON, ""),
        (f"orders {PYTHON}", "orders"),
        (f"orders of team a {PYTHON}", "orders of team a"),
        (f"two\nlines {PYTHON}", "two\nlines"),
        (f"a grpc-java/1.5 client {PYTHON}", "a grpc-java/1.5 client"),
        ("orders/1.0 grpc-go/1.60.0", "orders/1.0"),
        ("grpc-java-netty/1.60.0", ""),
        ("orders grpc-c++/1.60.0 grpc-c/40.0.0 (linux; chttp2)", "orders"),
        ("curl/8.5", "curl/8.5"),
        (f"millrace-broker broker-3 {PYTHON}", "millrace-broker broker-3"),
        ("", ""),
    ],
)
def test_the_client_id_is_the_user_agent_before_the_library(user_agent: str, client_id: str) -> None:
    assert client_id_of(user_agent) == client_id


@pytest.mark.parametrize(
    ("peer", "address", "text"),
    [
        ("ipv4:127.0.0.1:5000", ClientAddress("127.0.0.1", 5000), "127.0.0.1:5000"),
        ("ipv6:[::1]:5000", ClientAddress("::1", 5000), "[::1]:5000"),
        ("ipv6:%5B2001:db8::7%5D:5000", ClientAddress("2001:db8::7", 5000), "[2001:db8::7]:5000"),
    ],
)
def test_the_address_is_the_peer_without_the_kind(peer: str, address: ClientAddress, text: str) -> None:
    assert client_address(peer) == address
    assert str(address) == text


def test_unread_bodies_are_bounded_by_the_first_window_of_http2() -> None:
    """gRPC's probe would widen the window of calls that nothing reads."""
    options = dict(_options(BrokerConfig.load({})))
    assert options["grpc.http2.bdp_probe"] == 0
    assert options["grpc.http2.lookahead_bytes"] <= 2**18


def test_connections_leave_half_of_the_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed(descriptors: int, **options: str) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))
        config = BrokerConfig.load({name.replace("_", "."): value for name, value in options.items()})
        return dict(_options(config))["grpc.max_allowed_incoming_connections"]

    assert allowed(1024) == 512
    listeners = "KAFKA://127.0.0.1:1,ONE://127.0.0.1:2,TWO://127.0.0.1:3"
    protocols = {"listener_protocol_map": "ONE:grpc,TWO:grpc", "inter_broker_listener_name": "KAFKA"}
    security = {"listener_security_protocol_map": "KAFKA:PLAINTEXT,ONE:PLAINTEXT,TWO:PLAINTEXT"}
    assert allowed(1024, listeners=listeners, **protocols, **security) == 256
    assert allowed(1_000_000, max_connections="50") == 50 + 100 + 1000
    assert allowed(resource.RLIM_INFINITY, max_connections="2147483647") == 2**31 - 1

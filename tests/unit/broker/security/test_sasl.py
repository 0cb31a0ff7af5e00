"""Tests of the rules of a conversation of SASL."""

from __future__ import annotations

import asyncio

import pytest

from millrace.config.security_options import ListenerSecurity
from millrace.errors import SaslAuthenticationError
from millrace_broker.security.sasl import Logins, SaslAccess, SaslConversation

from ....planted_secrets import planted

LOGINS = Logins(lambda *_: None, lambda *_: None, lambda *_: None)
PASSWORD = planted("alice")
OPTIONS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.jaas.config": f'PlainLoginModule required user_alice="{PASSWORD}";',
}


def test_each_authentication_sets_the_end_of_the_session_anew() -> None:
    now_s, lifetime_ms = 0.0, "1000"

    def access() -> SaslAccess:
        return SaslAccess(ListenerSecurity.load({**OPTIONS, "connections.max.reauth.ms": lifetime_ms}), None)

    def authenticate() -> int:
        conversation.begin("PLAIN")
        return asyncio.run(conversation.authenticate(f"\0alice\0{PASSWORD}".encode())).lifetime_ms

    conversation = SaslConversation(access, LOGINS, lambda: now_s)
    assert authenticate() == 1000
    now_s = 2.0
    with pytest.raises(SaslAuthenticationError, match="has not authenticated again in time"):
        conversation.check()
    assert authenticate() == 1000
    conversation.check()
    lifetime_ms = "0"
    assert authenticate() == 0
    now_s = 1e9
    conversation.check()


def test_a_mechanism_may_have_a_lifetime_of_its_own() -> None:
    options = ListenerSecurity.load({**OPTIONS, "connections.max.reauth.ms": "1000"})

    def lifetime_ms(by_mechanism: dict[str, int]) -> int:
        conversation = SaslConversation(lambda: SaslAccess(options, None, by_mechanism), LOGINS, lambda: 0.0)
        conversation.begin("PLAIN")
        return asyncio.run(conversation.authenticate(f"\0alice\0{PASSWORD}".encode())).lifetime_ms

    assert lifetime_ms({}) == 1000
    assert lifetime_ms({"PLAIN": 7, "SCRAM-SHA-256": 8}) == 7
    assert lifetime_ms({"PLAIN": 0}) == 0

"""Tests of SCRAM.

The tests cover examples of the RFC, properties, and messages that are refused.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SaslAuthenticationError
from millrace.security import scram
from millrace.security.scram import MECHANISMS, ScramClient, ScramCredential, ScramServer

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
# Made once, because each one costs the iterations.
CREDENTIAL = ScramCredential.of_password("SCRAM-SHA-256", "pencil")


def _exchange(mechanism: str, client: ScramClient, credential: ScramCredential) -> ScramServer:
    server = ScramServer(mechanism, client.first())
    client.check(server.final(client.final(server.challenge(credential))))
    return server


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_right_password_is_accepted_and_another_refused(mechanism: str) -> None:
    credential = ScramCredential.of_password(mechanism, "pencil")
    assert _exchange(mechanism, ScramClient(mechanism, "user", "pencil"), credential).username == "user"
    with pytest.raises(SaslAuthenticationError):
        _exchange(mechanism, ScramClient(mechanism, "user", "Pencil"), credential)


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram, "_nonce", lambda: "rOprNGfwEbeRWgbNEkqO")
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.final(challenge) == final
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(SaslAuthenticationError, match="does not know the credential"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


@given(NAMES)
def test_any_name_arrives_as_it_is(name: str) -> None:
    assert ScramServer("SCRAM-SHA-256", ScramClient("SCRAM-SHA-256", name, "x").first()).username == name


def test_a_credential_is_stored_as_kafka_stores_it() -> None:
    text = CREDENTIAL.stored()
    assert [part.partition("=")[0] for part in text.split(",")] == ["salt", "stored_key", "server_key", "iterations"]
    assert ScramCredential.of_stored(text) == CREDENTIAL
    for wrong in ("", "salt=AA==", text.replace("iterations=4096", "iterations=many"), text.replace("salt=", "salt=*")):
        with pytest.raises(ValueError, match=r"no stored SCRAM credential|invalid literal"):
            ScramCredential.of_stored(wrong)
    assert base64.b64encode(CREDENTIAL.stored_key).decode() not in repr(CREDENTIAL)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"\xff\xfe",
    ],
)
def test_a_wrong_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(SaslAuthenticationError):
        ScramServer("SCRAM-SHA-256", first)


def test_a_wrong_last_message_is_refused() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    server = ScramServer("SCRAM-SHA-256", client.first())
    right = client.final(server.challenge(CREDENTIAL))
    assert server.final(right).startswith(b"v=")
    nonce = right.split(b",")[1]
    for wrong in (
        b"",
        right.replace(b"c=biws", b"c=eSws"),
        right.replace(nonce, nonce[:-1] + (b"0" if nonce[-1:] != b"0" else b"1")),
        right[:-8] + b"AAAAAAA=",
        right.split(b",p=")[0] + b",p=AAAA",
        right.split(b",p=")[0],
    ):
        with pytest.raises(SaslAuthenticationError):
            server.final(wrong)


@pytest.mark.parametrize(
    ("challenge", "problem"),
    [
        (b"r={nonce},s=AAAA,i=4096", "does not belong"),
        (b"r=other,s=AAAA,i=4096", "does not belong"),
        (b"r={nonce}x,s=AAAA,i=1", "wants 1 iterations"),
        (b"r={nonce}x,s=AAAA,i=999999999", "wants 999999999 iterations"),
    ],
)
def test_a_client_refuses_a_challenge_that_is_not_its_own_or_costs_too_much(challenge: bytes, problem: str) -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil")
    nonce = client.first().rpartition(b"r=")[2]
    with pytest.raises(SaslAuthenticationError, match=problem):
        client.final(challenge.replace(b"{nonce}", nonce))

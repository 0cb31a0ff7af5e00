"""Tests of SCRAM credentials in a broker's configuration.

Each credential is added once.
"""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, EmbeddedStore, paths
from millrace.security.scram import ScramCredential
from millrace_broker.metadata import ScramCredentials, registration
from millrace_broker.metadata.scram_credentials import ScramChange

from ....planted_secrets import planted

MECHANISM, OTHER = "SCRAM-SHA-512", "SCRAM-SHA-256"
CREDENTIAL = ScramCredential.of_password(MECHANISM, planted("client"))
CONFIG = BrokerConfig.load(
    {
        "sasl.scram.credentials": f"{MECHANISM}=[name=client,{CREDENTIAL.stored()}]",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "listener.name.sasl_plaintext.sasl.jaas.config": (
            f'ScramLoginModule required username="broker" password="{planted("broker")}";'
        ),
    }
)


@pytest.fixture
def session() -> Coordination:
    session = EmbeddedStore(now_ms=lambda: 0).connect()
    registration.ensure_roots(session)
    return session


@pytest.mark.parametrize("user", ["client", "broker"])
def test_a_deleted_credential_is_not_added_at_the_next_start(session: Coordination, user: str) -> None:
    credentials = ScramCredentials.of(session, CONFIG)
    assert {name: set(found) for name, found in credentials.of_users().items()} == {
        "client": {MECHANISM},
        "broker": {MECHANISM},
    }
    credentials.alter(user, [ScramChange(MECHANISM, None)])
    after = ScramCredentials.of(session, CONFIG)
    assert after.get(user, MECHANISM) is None
    assert set(after.of_users()) == {"client", "broker"} - {user}


def test_a_credential_that_exists_is_kept_and_counts_as_added(session: Coordination) -> None:
    present = ScramCredential.of_password(MECHANISM, planted("another"))
    earlier = ScramCredentials(session)
    earlier.alter("client", [ScramChange(MECHANISM, present)])
    credentials = ScramCredentials.of(session, CONFIG)
    assert credentials.get("client", MECHANISM) == present
    credentials.alter("client", [ScramChange(MECHANISM, None)])
    assert ScramCredentials.of(session, CONFIG).get("client", MECHANISM) is None


def test_each_mechanism_of_a_user_is_added(session: Coordination) -> None:
    ScramCredentials.of(session, CONFIG)
    second = ScramCredential.of_password(OTHER, planted("client"))
    more = BrokerConfig.load({"sasl.scram.credentials": f"{OTHER}=[name=client,{second.stored()}]"})
    assert ScramCredentials.of(session, more).get("client", OTHER) == second
    assert session.exists(paths.scram_seed_path(OTHER, "client")) is not None

"""Users, certificates and OpenID tokens of the comparison's brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from ..certificates import Authority
from ..oidc_provider import AUDIENCE, ISSUER, Provider

USER, PASSWORD = "alice", "alice-secret"
"""The user of PLAIN and of both mechanisms of SCRAM."""
KEY_PASSWORD: Final = "key-secret"
JWKS: Final = "sasl.oauthbearer.jwks.endpoint.url"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_LISTENER: Final = "listener.name.sasl_plaintext"
KAFKA: Final = f"""\
ssl.keystore.type=PEM
ssl.truststore.type=PEM
{_LISTENER}.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
"""
"""Options that Kafka needs, where millrace finds the value itself."""
_SECONDS_MAX: Final = 30
_ITERATIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of an authority, and of a client of that authority. ``key_pem`` and ``pkcs12`` have ``KEY_PASSWORD``."""

    folder: Path
    authority_pem: Path
    authority_der: Path
    broker: Path
    certificate_pem: Path
    certificate_der: Path
    key_pem: Path
    key_der: Path
    pkcs12: Path


def certificates(folder: Path) -> Certificates:
    """Make an authority, and certificates of the broker and of a client."""
    authority = Authority.make()
    client = authority.issue("CN=client")
    encrypted = BestAvailableEncryption(KEY_PASSWORD.encode())
    made = {
        "authority_pem": authority.identity.certificate.public_bytes(Encoding.PEM),
        "authority_der": authority.identity.certificate.public_bytes(Encoding.DER),
        "broker": authority.issue("CN=broker").pem(),
        "certificate_pem": client.certificate.public_bytes(Encoding.PEM),
        "certificate_der": client.certificate.public_bytes(Encoding.DER),
        "key_pem": client.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted),
        "key_der": client.key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        "pkcs12": serialize_key_and_certificates(
            b"client", client.key, client.certificate, [authority.identity.certificate], encrypted
        ),
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)
    (folder / "ca-cert").write_bytes(made["authority_pem"])  # the name in kafka-python's tests
    (folder / "client.pem").write_bytes(client.pem())  # for Java, which wants one file
    return Certificates(folder, **{name: folder / name for name in made})


def options(provider: Provider, made: Certificates) -> Mapping[str, str]:
    """Return the options of a broker for all mechanisms, certificates and delegation tokens."""
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{_LISTENER}.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{USER}="{PASSWORD}";',
        f"{_LISTENER}.scram-sha-256.sasl.jaas.config": f"{_SCRAM};",
        f"{_LISTENER}.scram-sha-512.sasl.jaas.config": f"{_SCRAM};",
        f"{_LISTENER}.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginModule required;",
        JWKS: f"{provider.url}/jwks",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "delegation.token.secret.key": "delegation-secret",
        "ssl.keystore.location": str(made.broker),
        "ssl.truststore.location": str(made.authority_pem),
    }


def create_users(address: str) -> None:
    """Set the password of the user for both mechanisms of SCRAM."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = ScramCredentialInfo(mechanism, _ITERATIONS)
        change = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        admin.alter_user_scram_credentials([change])[USER].result(_SECONDS_MAX)


def client_options(mechanism: str, username: str = USER, password: str = PASSWORD, **login: str) -> str:
    """Return the properties of a client in Java that authenticates as a user, with more options of the login module."""
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    login = {"username": username, "password": password, **login}
    options = " ".join(f'{name}="{value}"' for name, value in login.items())
    return (
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required {options};\n"
    )

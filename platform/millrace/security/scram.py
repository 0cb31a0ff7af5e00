"""Both sides of SCRAM (RFC 5802, RFC 7677), and its credentials.

The sides do no input or output. Kafka's classes are ``ScramFormatter``, ``ScramCredential`` and
``ScramCredentialUtils``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final, Self

from millrace.errors import SaslAuthenticationError

MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Hash functions by the names of the mechanisms."""
MECHANISM_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Numbers of the mechanisms in Kafka's protocol."""
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Bounds of a stored credential, as Kafka has them."""
_CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""Work that a client does for a server at most."""
_SALT_BYTES: Final = 32
_NO_BINDING: Final = base64.b64encode(b"n,,").decode()
_NONCE: Final = r"([\x21-\x2b\x2d-\x7e]+)"
_BASE64: Final = r"([A-Za-z0-9+/=]+)"
_EXTENSIONS: Final = r"((?:,[^,=]+=[^,]*)*)"
_TOKEN_EXTENSION: Final = "tokenauth=true"
_CLIENT_FIRST: Final = re.compile(rf"n,(?:a=([^,]*))?,(n=([^,]+),r={_NONCE}{_EXTENSIONS})")
_SERVER_FIRST: Final = re.compile(rf"r={_NONCE},s={_BASE64},i=(\d{{1,9}}){_EXTENSIONS}")
_CLIENT_FINAL: Final = re.compile(rf"(c={_BASE64},r={_NONCE}{_EXTENSIONS}),p={_BASE64}")


@dataclass(frozen=True, slots=True)
class SaltedPassword:
    """Salted password that administrators send to a broker.

    The broker makes a ``ScramCredential`` of it.
    """

    value: bytes = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of(cls, mechanism: str, password: str, iterations: int = ITERATIONS_MIN) -> Self:
        """Salt a password, with a new salt."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(_salted(mechanism, password, salt, iterations), salt, iterations)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Credential that a server stores instead of the password (Kafka's ``ScramCredential``).

    The password cannot be computed from it.
    """

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_password(cls, mechanism: str, password: str, iterations: int = ITERATIONS_MIN) -> Self:
        """Return a credential of a password, with a new salt."""
        salted = SaltedPassword.of(mechanism, password, iterations)
        return cls.of_salted_password(mechanism, salted.value, salted.salt, iterations)

    @classmethod
    def of_salted_password(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Self:
        """Return a credential of a salted password, which administrators send."""
        stored_key = hashlib.new(MECHANISMS[mechanism], _mac(mechanism, salted, b"Client Key")).digest()
        return cls(salt, stored_key, _mac(mechanism, salted, b"Server Key"), iterations)

    def stored(self) -> str:
        """Return Kafka's text of a stored credential."""
        parts = {"salt": self.salt, "stored_key": self.stored_key, "server_key": self.server_key}
        encoded = ",".join(f"{name}={base64.b64encode(value).decode()}" for name, value in parts.items())
        return f"{encoded},iterations={self.iterations}"

    @classmethod
    def of_stored(cls, text: str) -> Self:
        """Parse Kafka's text of a stored credential. Raises ``ValueError``."""
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored_key, server_key = (
                base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            return cls(salt, stored_key, server_key, int(parts["iterations"]))
        except (KeyError, binascii.Error) as error:
            raise ValueError(f"this is no stored SCRAM credential: {error}") from None


def _salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password.encode(), salt, iterations)


def _mac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, MECHANISMS[mechanism])


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _nonce() -> str:
    return secrets.token_hex(16)


class ScramClient:
    """Client side of one exchange."""

    def __init__(self, mechanism: str, username: str, password: str, *, is_token: bool = False) -> None:
        """``is_token`` says that user and password are the id and the HMAC of a delegation token (KIP-48)."""
        self._mechanism: Final = mechanism
        self._password: Final = password
        self._nonce: Final = _nonce()
        self._first_bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        if is_token:
            self._first_bare += f",{_TOKEN_EXTENSION}"

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the second message, with the proof. Raises ``SaslAuthenticationError`` for a wrong challenge."""
        text = server_first.decode("utf-8", "replace")
        found = _SERVER_FIRST.fullmatch(text)
        if found is None or not found[1].startswith(self._nonce) or found[1] == self._nonce:
            raise SaslAuthenticationError("the broker's SCRAM challenge does not belong to this connection")
        iterations = int(found[3])
        if not ITERATIONS_MIN <= iterations <= _CLIENT_ITERATIONS_MAX:
            raise SaslAuthenticationError(
                f"the broker wants {iterations} iterations of SCRAM: this client does {ITERATIONS_MIN} to "
                f"{_CLIENT_ITERATIONS_MAX}"
            )
        without_proof = f"c={_NO_BINDING},r={found[1]}"
        salted = _salted(self._mechanism, self._password, base64.b64decode(found[2]), iterations)
        message = f"{self._first_bare},{text},{without_proof}".encode()
        client_key = _mac(self._mechanism, salted, b"Client Key")
        stored_key = hashlib.new(MECHANISMS[self._mechanism], client_key).digest()
        self._server_signature = _mac(self._mechanism, _mac(self._mechanism, salted, b"Server Key"), message)
        proof = _xor(client_key, _mac(self._mechanism, stored_key, message))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise ``SaslAuthenticationError`` unless the broker knows the credential."""
        expected = b"v=" + base64.b64encode(self._server_signature)
        if not hmac.compare_digest(server_final.split(b",")[0], expected):
            raise SaslAuthenticationError("the broker does not know the credential of this user: it may be another one")


class ScramServer:
    """Server side of one exchange. Its nonce is new, so that no recorded exchange can be replayed."""

    def __init__(self, mechanism: str, client_first: bytes) -> None:
        """Parse the client's first message. Raises ``SaslAuthenticationError``."""
        found = _CLIENT_FIRST.fullmatch(client_first.decode("utf-8", "replace"))
        if found is None:
            raise SaslAuthenticationError("the client's first SCRAM message is malformed")
        self._mechanism: Final = mechanism
        self.username: Final = plain_name(found[3])
        if found[1] and plain_name(found[1]) != self.username:
            raise SaslAuthenticationError("SCRAM for another authorization id than the user's is not supported")
        self.wants_token: Final = _TOKEN_EXTENSION in found[5].split(",")
        self._first_bare: Final = found[2]
        self._nonce: Final = found[4] + _nonce()

    def challenge(self, credential: ScramCredential) -> bytes:
        """Return the challenge for a user with this credential."""
        self._credential = credential
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def final(self, client_final: bytes) -> bytes:
        """Check the proof, and return the last message. Raises ``SaslAuthenticationError``."""
        found = _CLIENT_FINAL.fullmatch(client_final.decode("utf-8", "replace"))
        if found is None or found[3] != self._nonce or found[2] != _NO_BINDING:
            raise SaslAuthenticationError("the client's SCRAM proof does not belong to this connection")
        message = f"{self._first_bare},{self._server_first},{found[1]}".encode()
        signature = _mac(self._mechanism, self._credential.stored_key, message)
        try:
            client_key = _xor(base64.b64decode(found[5], validate=True), signature)
        except (binascii.Error, ValueError):
            raise SaslAuthenticationError("the client's SCRAM proof is malformed") from None
        found_key = hashlib.new(MECHANISMS[self._mechanism], client_key).digest()
        if not hmac.compare_digest(found_key, self._credential.stored_key):
            raise SaslAuthenticationError("invalid credentials")
        return b"v=" + base64.b64encode(_mac(self._mechanism, self._credential.server_key, message))


def plain_name(text: str) -> str:
    """Return a name in a message without its escapes. Raises ``SaslAuthenticationError``."""
    if re.search("=(?!2C|3D)", text):
        raise SaslAuthenticationError("the user name in the client's message is malformed")
    return text.replace("=2C", ",").replace("=3D", "=")

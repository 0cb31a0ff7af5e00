"""Delegation tokens of a cluster (KIP-48, KIP-373).

The nodes in the metadata store and the rules are Kafka's. Kafka's classes are ``DelegationTokenManagerZk`` and
``DelegationTokenCache``. A token is an id and an HMAC of the id, with a key that all brokers have. A client uses the id
as the user, and the HMAC in Base64 as the password of SCRAM.

Invariants

- ``_tokens`` has only tokens that were read from the store or written to it.
- A change and its notice are one transaction.
- Changes and reloads run in the administration thread. Any thread may read.
- Expired tokens are never accepted. Regular calls of ``remove_expired`` delete them.
- No HMAC and no key is in a message, in the store, or in a ``repr``.
"""

from __future__ import annotations

import base64
import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

from millrace.config.broker import BrokerConfig
from millrace.coordination import (
    BadVersionError,
    Coordination,
    Create,
    Delete,
    NoNodeError,
    Write,
    ensure_path,
    paths,
)
from millrace.coordination.outcomes import settle
from millrace.coordination.token_nodes import DelegationTokenNode
from millrace.errors import (
    DelegationTokenDisabledError,
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    StorageError,
)
from millrace.security.scram import MECHANISMS, ScramCredential

_logger: Final = logging.getLogger(__name__)

_ID_BYTES: Final = 16
_LIFETIME_MS_MAX: Final = 2**53


@dataclass(frozen=True, slots=True)
class TokenLifetimes:
    """Lifetimes of new tokens, and of renewals without one."""

    max_ms: int
    renewal_ms: int


class TokenLogin(NamedTuple):
    """Credential, owner and end of a token, for a login."""

    credential: ScramCredential
    owner: str
    """Name of the principal, of the type ``User``."""
    expires_s: float
    """End of the token, in seconds since the epoch."""


class DelegationTokens:
    """Delegation tokens by their ids."""

    def __init__(
        self, coordination: Coordination, secret_key: str, lifetimes: TokenLifetimes, now_ms: Callable[[], int]
    ) -> None:
        """Read all tokens. It blocks. Without ``secret_key`` there are none."""
        self._coordination: Final = coordination
        self._key: Final = secret_key.encode()
        self._lifetimes: Final = lifetimes
        self._now_ms: Final = now_ms
        self._tokens: dict[str, DelegationTokenNode] = {}
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        """Credentials of SCRAM by id and mechanism, made at the first login because each costs milliseconds."""
        if self.is_enabled:
            for path in (paths.DELEGATION_TOKENS, paths.DELEGATION_TOKEN_CHANGES):
                ensure_path(coordination, path)
            self.reload_all()

    @classmethod
    def of(cls, config: BrokerConfig, coordination: Coordination, now_ms: Callable[[], int]) -> Self:
        """Return the tokens of a broker's cluster."""
        lifetimes = TokenLifetimes(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
        return cls(coordination, config.delegation_token_secret_key, lifetimes, now_ms)

    @property
    def is_enabled(self) -> bool:
        """True if the broker has the secret key."""
        return bool(self._key)

    # --- what is read -------------------------------------------------------------------------------------------

    def reload_all(self) -> None:
        """Read all tokens, because notices may have been missed."""
        if not self.is_enabled:
            return
        names = self._coordination.children(paths.DELEGATION_TOKENS)
        found = self._coordination.get_many([paths.delegation_token_path(name) for name in names])
        self._tokens = {
            name: token
            for name, node in zip(names, found, strict=True)
            if node is not None and (token := _decoded(name, node[0])) is not None
        }
        self._credentials = {}

    def reload(self, token_id: str) -> None:
        """Read a token again."""
        try:
            data, _ = self._coordination.get(paths.delegation_token_path(token_id))
        except NoNodeError:
            self._forget(token_id)
            return
        token = _decoded(token_id, data)
        if token is None:
            self._forget(token_id)
        else:
            self._tokens = {**self._tokens, token_id: token}

    def hmac_of(self, token_id: str) -> bytes:
        """Return the HMAC of a token."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def all(self) -> Sequence[DelegationTokenNode]:
        """Return the tokens that have not expired. Raises ``DelegationTokenDisabledError``."""
        self._check_enabled()
        now_ms = self._now_ms()
        return [each for each in self._tokens.values() if not _is_expired(each, now_ms)]

    def login(self, token_id: str, mechanism: str) -> TokenLogin | None:
        """Return the credential of a token for a mechanism of SCRAM; None for an unknown or expired token."""
        token = self._tokens.get(token_id)
        if token is None or _is_expired(token, self._now_ms()):
            return None
        credential = self._credentials.get((token_id, mechanism))
        if credential is None:
            password = base64.b64encode(self.hmac_of(token_id)).decode("ascii")
            credential = self._credentials[token_id, mechanism] = ScramCredential.of_password(mechanism, password)
        return TokenLogin(credential, token.owner.partition(":")[2], token.expires_ms / 1000)

    # --- changes ------------------------------------------------------------------------------------------------

    def create(self, owner: str, requester: str, renewers: Sequence[str], lifetime_ms: int) -> DelegationTokenNode:
        """Create a token that lives at most ``lifetime_ms`` (negative or 0: the longest lifetime).

        Raises ``DelegationTokenDisabledError``.
        """
        self._check_enabled()
        now_ms = self._now_ms()
        longest_ms = self._lifetimes.max_ms
        max_ms = now_ms + (min(lifetime_ms, longest_ms) if lifetime_ms > 0 else longest_ms)
        token = DelegationTokenNode(
            token_id=base64.urlsafe_b64encode(secrets.token_bytes(_ID_BYTES)).decode("ascii").rstrip("="),
            owner=owner,
            requester=requester,
            renewers=tuple(renewers),
            issued_ms=now_ms,
            expires_ms=min(max_ms, now_ms + self._lifetimes.renewal_ms),
            max_ms=max_ms,
        )
        created = Create(paths.delegation_token_path(token.token_id), token.encode())
        settle(self._coordination, [created, _notice(token.token_id)])
        self._tokens = {**self._tokens, token.token_id: token}
        return token

    def renew(self, principal: str, token_hmac: bytes, period_ms: int) -> int:
        """Prolong a token by ``period_ms`` from now (negative: the default), and return its new end in ms.

        Raises ``DelegationTokenDisabledError``, ``DelegationTokenNotFoundError``,
        ``DelegationTokenOwnerMismatchError`` and ``DelegationTokenExpiredError``.
        """
        if period_ms < 0:
            period_ms = self._lifetimes.renewal_ms
        return self._set_end(self._found(principal, token_hmac), principal, token_hmac, period_ms)

    def expire(self, principal: str, token_hmac: bytes, period_ms: int) -> int:
        """End a token ``period_ms`` from now (negative: delete it at once), and return its end in ms.

        Raises the errors of ``renew``.
        """
        token = self._found(principal, token_hmac)
        if period_ms < 0:
            self._delete(token.token_id)
            return self._now_ms()
        return self._set_end(token, principal, token_hmac, period_ms)

    def remove_expired(self) -> int:
        """Delete the expired tokens, and return their number."""
        now_ms = self._now_ms()
        expired = [each.token_id for each in self._tokens.values() if _is_expired(each, now_ms)]
        for token_id in expired:
            self._delete(token_id)
        return len(expired)

    def _set_end(self, token: DelegationTokenNode, principal: str, token_hmac: bytes, period_ms: int) -> int:
        while True:
            now_ms = self._now_ms()
            if _is_expired(token, now_ms):
                raise DelegationTokenExpiredError("the delegation token has expired: create another one")
            after = replace(token, expires_ms=min(token.max_ms, now_ms + min(period_ms, _LIFETIME_MS_MAX)))
            path = paths.delegation_token_path(token.token_id)
            try:
                data, stat = self._coordination.get(path)
                if data == token.encode():
                    settle(self._coordination, [Write(path, after.encode(), stat.version), _notice(token.token_id)])
                    self._tokens = {**self._tokens, token.token_id: after}
                    return after.expires_ms
            except (BadVersionError, NoNodeError):
                pass  # another broker was faster
            self.reload(token.token_id)
            token = self._found(principal, token_hmac)

    def _delete(self, token_id: str) -> None:
        try:
            settle(self._coordination, [Delete(paths.delegation_token_path(token_id)), _notice(token_id)])
        except NoNodeError:
            _logger.debug("another broker has deleted the delegation token %s", token_id)
        self._forget(token_id)

    def _forget(self, token_id: str) -> None:
        self._tokens = {name: each for name, each in self._tokens.items() if name != token_id}
        for mechanism in MECHANISMS:  # a loop over all credentials would fail when the event loop adds one
            self._credentials.pop((token_id, mechanism), None)

    def _found(self, principal: str, token_hmac: bytes) -> DelegationTokenNode:
        """Return the token with an HMAC, which the principal owns or may renew. Raises the errors of ``renew``."""
        self._check_enabled()
        for token_id, token in self._tokens.items():
            if hmac.compare_digest(self.hmac_of(token_id), token_hmac):
                if principal not in (token.owner, *token.renewers):
                    raise DelegationTokenOwnerMismatchError(f"{principal} neither owns nor renews the delegation token")
                return token
        raise DelegationTokenNotFoundError("the cluster has no delegation token with this HMAC")

    def _check_enabled(self) -> None:
        if not self.is_enabled:
            raise DelegationTokenDisabledError(
                "the cluster has no delegation tokens: set delegation.token.secret.key, the same at all brokers"
            )


def _is_expired(token: DelegationTokenNode, now_ms: int) -> bool:
    return now_ms > min(token.expires_ms, token.max_ms)


def _notice(token_id: str) -> Create:
    return Create(paths.DELEGATION_TOKEN_CHANGE, token_id.encode(), sequential=True)


def _decoded(token_id: str, data: bytes) -> DelegationTokenNode | None:
    try:
        return DelegationTokenNode.decode(data)
    except StorageError as error:
        _logger.error("the delegation token %s cannot be used: %s", token_id, error.message)
        return None

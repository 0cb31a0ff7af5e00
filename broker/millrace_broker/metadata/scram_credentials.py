"""SCRAM credentials of users, in Kafka's nodes.

The credentials are options of ``/config/users/<user>``, as in Kafka. Kafka's classes are ``CredentialProvider`` and
``ZkConfigManager``. Any thread may read; changes block, in the administration thread.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple, Self
from urllib.parse import unquote

from millrace.config.broker import BrokerConfig
from millrace.config.listener_options import parse_scram_credentials
from millrace.coordination import Coordination, ensure_path, paths
from millrace.errors import InvalidConfigError, ResourceNotFoundError
from millrace.security.scram import MECHANISMS, ScramCredential
from millrace_broker.metadata.config_nodes import change_config, read_config

_logger: Final = logging.getLogger(__name__)


class ScramChange(NamedTuple):
    """A new credential of a user for a mechanism; None deletes it."""

    mechanism: str
    credential: ScramCredential | None


class ScramCredentials:
    """Credentials by users and mechanisms, read once and changed in one place."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination: Final = coordination
        self.reload_all()

    @classmethod
    def of(cls, coordination: Coordination, config: BrokerConfig) -> Self:
        """Read the credentials of users. Add each of the configuration once, unless its user has one already.

        A credential that was deleted afterwards stays deleted. If brokers use SCRAM, this broker's own user is one of
        the configured ones. Raises ``InvalidConfigError``.
        """
        credentials = cls(coordination)
        for mechanism, user, stored in parse_scram_credentials(config.sasl_scram_credentials):
            try:
                credential = ScramCredential.of_stored(stored)
            except ValueError as error:
                raise InvalidConfigError(f"sasl.scram.credentials of user {user}: {error}") from None
            credentials._seed(user, mechanism, credential)
        listener, mechanism = config.inter_broker_listener, config.sasl_mechanism_inter_broker_protocol
        login = config.security_of(listener).login
        user, password = login.get("username", ""), login.get("password", "")
        if config.security_protocol_of(listener).has_sasl and mechanism in MECHANISMS and user and password:
            credentials._seed(user, mechanism, ScramCredential.of_password(mechanism, password))
        return credentials

    def _seed(self, user: str, mechanism: str, credential: ScramCredential) -> None:
        """Add a configured credential, and a node that prevents a second time."""
        seed = paths.scram_seed_path(mechanism, user)
        if self._coordination.exists(seed) is not None:
            return
        if self.get(user, mechanism) is None:
            self.alter(user, [ScramChange(mechanism, credential)])
        ensure_path(self._coordination, seed)

    def reload_all(self) -> None:
        """Read the credentials of every user."""
        names = self._coordination.children(_USERS)
        self._replace({unquote(name): self._read(name) for name in names})

    def reload(self, name: str) -> None:
        """Read the credentials of the user with the node ``name``. An entity below a user has none."""
        if "/" not in name:
            self._replace({**self._of_users, unquote(name): self._read(name)})

    def _read(self, name: str) -> dict[str, ScramCredential]:
        return _credentials(unquote(name), read_config(self._coordination, f"{_USERS}/{name}"))

    def _replace(self, of_users: Mapping[str, dict[str, ScramCredential]]) -> None:
        """Replace the credentials of all users. They are sorted here, and not at each login."""
        self._of_users = dict(sorted(of_users.items()))
        self._models = {
            mechanism: [found[mechanism] for found in self._of_users.values() if mechanism in found]
            for mechanism in MECHANISMS
        }

    def get(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return a user's credential; None if there is none."""
        return self._of_users.get(user, {}).get(mechanism)

    def model(self, stranger: str, mechanism: str) -> ScramCredential | None:
        """Return another user's credential for a user that has none, the same one at all brokers.

        The name of the unknown user decides which one, so that challenges of unknown users are as various as those of
        known users. Returns None if no user has a credential for the mechanism.
        """
        found = self._models[mechanism]
        if not found:
            return None
        chosen = hmac.digest(found[0].server_key, stranger.encode(), "sha256")
        return found[int.from_bytes(chosen) % len(found)]

    def of_users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """Return the credentials of all users that have some."""
        return {user: found for user, found in self._of_users.items() if found}

    def alter(self, user: str, changes: list[ScramChange]) -> None:
        """Set and delete credentials of a user.

        Raises ``ResourceNotFoundError`` if a credential to delete is not there; then nothing has changed.
        """

        def change(present: Mapping[str, str]) -> dict[str, str]:
            after = dict(present)
            for mechanism, credential in changes:
                if credential is not None:
                    after[mechanism] = credential.stored()
                elif after.pop(mechanism, None) is None:
                    raise ResourceNotFoundError(f"user {user} has no credential for {mechanism}")
            return after

        path = paths.config_path(paths.config_entity("users", user))
        written = change_config(self._coordination, path, change)
        self._replace({**self._of_users, user: _credentials(user, written)})


_USERS: Final = f"{paths.CONFIGS}/users"


def _credentials(user: str, options: Mapping[str, str]) -> dict[str, ScramCredential]:
    found = {}
    for mechanism in MECHANISMS.keys() & options.keys():
        try:
            found[mechanism] = ScramCredential.of_stored(options[mechanism])
        except ValueError as error:
            _logger.error("user %s cannot use %s: %s", user, mechanism, error)
    return found

"""SCRAM credentials of users (KIP-554), by calls of Kafka's protocol.

millrace's own protocol has no such calls. The brokers get salted passwords only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from millrace.clients.transport.kafka_call import call_once
from millrace.config.client import ClientConfig
from millrace.errors import MillraceError, ResourceNotFoundError, UsageError, error_of
from millrace.kafka_protocol.calls.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millrace.kafka_protocol.calls.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from millrace.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISM_NUMBERS, SaltedPassword

_MECHANISMS: Final = {number: mechanism for mechanism, number in MECHANISM_NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """New password of a user for one mechanism (as in Kafka).

    Raises ``UsageError`` for an unknown mechanism, an empty password, and iterations that no broker accepts.
    """

    user: str
    mechanism: str
    password: str = field(repr=False)
    iterations: int = ITERATIONS_MIN

    def __post_init__(self) -> None:
        """Check the credential, because the broker gets only the salted password."""
        _check_mechanism(self.mechanism)
        if not self.password:
            raise UsageError(f"the password of user {self.user} for {self.mechanism} is empty: give a password")
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise UsageError(
                f"{self.iterations} iterations of {self.mechanism}: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    """Removal of a user's password for one mechanism (as in Kafka).

    Raises ``UsageError`` for an unknown mechanism.
    """

    user: str
    mechanism: str

    def __post_init__(self) -> None:
        """Check the mechanism, whose number is in the request."""
        _check_mechanism(self.mechanism)


class ScramOperations:
    """Operations of ``Admin`` on SCRAM credentials of users (KIP-554).

    They use Kafka's protocol, on a connection of their own, so ``bootstrap.servers`` names listeners with Kafka's
    framing.
    """

    _config: ClientConfig

    def describe_user_scram_credentials(self, users: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """Return the iterations by mechanism of users, or of all users. Users without credentials are left out.

        Raises the broker's error, and ``BrokerUnavailableError``.
        """
        return _described(self._config, users)

    def alter_user_scram_credentials(
        self, alterations: Iterable[UserScramCredentialUpsertion | UserScramCredentialDeletion]
    ) -> dict[str, MillraceError | None]:
        """Set and delete credentials. Return the error of each user, or None. All changes of a user are made, or none.

        The client salts the passwords. Raises ``BrokerUnavailableError``.
        """
        return _altered(self._config, alterations)


def add_credential(config: ClientConfig, user: str, mechanism: str, password: str) -> None:
    """Give a user a password, of which the cluster gets the salted form.

    Raises ``UsageError`` if the user has a credential already, the broker's error, and ``BrokerUnavailableError``.
    """
    if _described(config, [user]):
        raise UsageError(
            f"the cluster has a user {user}, whose password would change: choose another name, or delete the user's "
            f"credentials with millrace configs alter users {user} --delete {mechanism}"
        )
    error = _altered(config, [UserScramCredentialUpsertion(user, mechanism, password)])[user]
    if error is not None:
        raise error


def _described(config: ClientConfig, users: Iterable[str]) -> dict[str, dict[str, int]]:
    named = tuple(UserName(name=user) for user in dict.fromkeys(users))
    request = DescribeUserScramCredentialsRequest(users=named or None)
    response = call_once(config, request, DescribeUserScramCredentialsResponse)
    found: dict[str, dict[str, int]] = {}
    for code, message, result in [
        (response.error_code, response.error_message, None),
        *((each.error_code, each.error_message, each) for each in response.results),
    ]:
        if code not in (0, ResourceNotFoundError.code):
            raise _error(code, message)
        if result is not None and result.credential_infos:
            found[result.user] = {
                _MECHANISMS.get(info.mechanism, f"UNKNOWN-{info.mechanism}"): info.iterations
                for info in result.credential_infos
            }
    return found


def _altered(
    config: ClientConfig, alterations: Iterable[UserScramCredentialUpsertion | UserScramCredentialDeletion]
) -> dict[str, MillraceError | None]:
    upsertions: list[ScramCredentialUpsertion] = []
    deletions: list[ScramCredentialDeletion] = []
    for each in alterations:
        number = MECHANISM_NUMBERS[each.mechanism]
        if isinstance(each, UserScramCredentialDeletion):
            deletions.append(ScramCredentialDeletion(name=each.user, mechanism=number))
            continue
        salted = SaltedPassword.of(each.mechanism, each.password, each.iterations)
        upsertions.append(
            ScramCredentialUpsertion(
                name=each.user,
                mechanism=number,
                iterations=salted.iterations,
                salt=salted.salt,
                salted_password=salted.value,
            )
        )
    request = AlterUserScramCredentialsRequest(deletions=tuple(deletions), upsertions=tuple(upsertions))
    response = call_once(config, request, AlterUserScramCredentialsResponse)
    return {
        each.user: _error(each.error_code, each.error_message) if each.error_code else None for each in response.results
    }


def _check_mechanism(mechanism: str) -> None:
    if mechanism not in MECHANISM_NUMBERS:
        raise UsageError(f"{mechanism} is no SCRAM mechanism: expected {' or '.join(MECHANISM_NUMBERS)}")


def _error(code: int, message: str | None) -> MillraceError:
    return error_of(code, message or f"the broker refuses the call for SCRAM credentials (Kafka error {code})")

"""SCRAM credentials of users (KIP-554), by calls of Kafka's protocol.

millrace's own protocol has no such calls. Kafka's class is ``KafkaAdminClient``.
"""

from __future__ import annotations

from millrace.clients.transport.kafka_call import call_once
from millrace.config.client import ClientConfig
from millrace.errors import ResourceNotFoundError, UsageError, error_of
from millrace.kafka_protocol.calls.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from millrace.kafka_protocol.calls.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from millrace.security.scram import MECHANISM_NUMBERS, SaltedPassword


def add_credential(config: ClientConfig, user: str, mechanism: str, password: str) -> None:
    """Give a user a password, of which the cluster gets the salted form.

    Raises ``UsageError`` if the user has a credential already, the broker's error, and ``BrokerUnavailableError``.
    """
    asked = DescribeUserScramCredentialsRequest(users=(UserName(name=user),))
    described = call_once(config, asked, DescribeUserScramCredentialsResponse)
    _check(described.error_code, described.error_message)
    for found in described.results:
        if found.error_code == ResourceNotFoundError.code:
            continue
        _check(found.error_code, found.error_message)
        raise UsageError(
            f"the cluster has a user {user}, whose password would change: choose another name, or delete the user's "
            "credentials with kafka-configs"
        )
    salted = SaltedPassword.of(mechanism, password)
    upsertion = ScramCredentialUpsertion(
        name=user,
        mechanism=MECHANISM_NUMBERS[mechanism],
        iterations=salted.iterations,
        salt=salted.salt,
        salted_password=salted.value,
    )
    request = AlterUserScramCredentialsRequest(deletions=(), upsertions=(upsertion,))
    for result in call_once(config, request, AlterUserScramCredentialsResponse).results:
        _check(result.error_code, result.error_message)


def _check(error_code: int, message: str | None) -> None:
    if error_code:
        raise error_of(
            error_code, message or f"the broker refuses the change of credentials (Kafka error {error_code})"
        )

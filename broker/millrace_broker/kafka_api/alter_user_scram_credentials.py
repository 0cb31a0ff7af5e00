"""Kafka's AlterUserScramCredentials call (KIP-554).

The call sets and deletes SCRAM credentials of users for ``kafka-configs``.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import (
    DuplicateResourceError,
    MillraceError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from millrace.kafka_protocol.calls.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millrace.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISM_NUMBERS, ScramCredential
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of
from millrace_broker.metadata.scram_credentials import ScramChange
from millrace_broker.runtime.turns import Turns

_MECHANISMS: Final = {number: mechanism for mechanism, number in MECHANISM_NUMBERS.items()}


async def handle(message: AlterUserScramCredentialsRequest, request: KafkaRequest) -> AlterUserScramCredentialsResponse:
    """Apply the changes of each user together, or none of that user's."""
    try:
        check_request("AlterUserScramCredentials", request.broker, message, request.context)
    except MillraceError as error:
        return _failed(message, code_of(error), error.message)
    wanted: dict[str, list[ScramCredentialDeletion | ScramCredentialUpsertion]] = {}
    for deletion in message.deletions:
        wanted.setdefault(deletion.name, []).append(deletion)
    for upsertion in message.upsertions:
        wanted.setdefault(upsertion.name, []).append(upsertion)
    results, turns = [], Turns()
    for user, changes in wanted.items():
        await turns.next()
        try:
            checked = [_change(user, each) for each in changes]
            if len({change.mechanism for change in checked}) < len(checked):
                raise DuplicateResourceError(f"a credential of user {user} is changed twice in one request")
            await request.broker.executors.administer(request.broker.scram_credentials.alter, user, checked)
        except MillraceError as error:
            results.append(
                AlterUserScramCredentialsResult(user=user, error_code=code_of(error), error_message=error.message)
            )
        else:
            results.append(AlterUserScramCredentialsResult(user=user, error_code=0, error_message=None))
    return AlterUserScramCredentialsResponse(throttle_time_ms=0, results=tuple(results))


def _change(user: str, wanted: ScramCredentialDeletion | ScramCredentialUpsertion) -> ScramChange:
    """Return a change. Raises ``UnacceptableCredentialError`` and ``UnsupportedSaslMechanismError``."""
    mechanism = _MECHANISMS.get(wanted.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanismError(f"{wanted.mechanism} is the number of no SCRAM mechanism")
    if not user:
        raise UnacceptableCredentialError("the user name is empty")
    if isinstance(wanted, ScramCredentialDeletion):
        return ScramChange(mechanism, None)
    if not ITERATIONS_MIN <= wanted.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredentialError(
            f"{wanted.iterations} iterations for user {user}: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    if not (wanted.salt and wanted.salted_password):
        raise UnacceptableCredentialError(f"the salt or the password of user {user} is empty")
    return ScramChange(
        mechanism,
        ScramCredential.of_salted_password(
            mechanism, bytes(wanted.salted_password), bytes(wanted.salt), wanted.iterations
        ),
    )


def refuse(
    message: AlterUserScramCredentialsRequest, version: int, error_code: int
) -> AlterUserScramCredentialsResponse:
    """Answer each user with the error."""
    return _failed(message, error_code, None)


def _failed(
    message: AlterUserScramCredentialsRequest, error_code: int, text: str | None
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys(
        [*(deletion.name for deletion in message.deletions), *(upsertion.name for upsertion in message.upsertions)]
    )
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=tuple(
            AlterUserScramCredentialsResult(user=user, error_code=error_code, error_message=text) for user in users
        ),
    )

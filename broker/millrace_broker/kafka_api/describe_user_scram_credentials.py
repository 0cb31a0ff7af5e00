"""Kafka's DescribeUserScramCredentials call (KIP-554).

The call returns the SCRAM mechanisms and iterations of users for ``kafka-configs``.
"""

from __future__ import annotations

from collections import Counter

from millrace.errors import DuplicateResourceError, MillraceError, ResourceNotFoundError
from millrace.kafka_protocol.calls.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from millrace.security.scram import MECHANISM_NUMBERS
from millrace_broker.api.common.access_rules import check_request
from millrace_broker.kafka_api.call import KafkaRequest
from millrace_broker.kafka_api.error_codes import code_of


async def handle(
    message: DescribeUserScramCredentialsRequest, request: KafkaRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe the named users, or all users that have credentials."""
    try:
        check_request("DescribeUserScramCredentials", request.broker, message, request.context)
    except MillraceError as error:
        return _failed(code_of(error), error.message)
    known = request.broker.scram_credentials.of_users()
    names = [each.name for each in message.users] if message.users else list(known)
    results = []
    for name, times in Counter(names).items():
        if times > 1:
            results.append(_duplicate(name))
            continue
        found = known.get(name, {})
        results.append(
            DescribeUserScramCredentialsResult(
                user=name,
                error_code=0 if found else ResourceNotFoundError.code,
                error_message="" if found else f"user {name} has no SCRAM credential",
                credential_infos=tuple(
                    CredentialInfo(mechanism=MECHANISM_NUMBERS[mechanism], iterations=found[mechanism].iterations)
                    for mechanism in sorted(found)
                ),
            )
        )
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=0, error_message="", results=tuple(results)
    )


def _duplicate(name: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=DuplicateResourceError.code,
        error_message=f"user {name} is in the request more than once: name it once",
        credential_infos=(),
    )


def refuse(
    message: DescribeUserScramCredentialsRequest, version: int, error_code: int
) -> DescribeUserScramCredentialsResponse:
    """Answer with the error."""
    return _failed(error_code, None)


def _failed(error_code: int, text: str | None) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=error_code, error_message=text, results=()
    )

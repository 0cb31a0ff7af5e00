"""Kafka's ApiVersions call, which lists this broker's calls and versions (KIP-35, KIP-511)."""

from __future__ import annotations

import re
from typing import Final

from millrace.errors import InvalidRequestError
from millrace.kafka_protocol.calls.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from millrace.kafka_protocol.calls.table import ApiKey
from millrace_broker.kafka_api.call import KafkaRequest

_WITH_SOFTWARE: Final = 3
_WITH_ZERO: Final = 4
_FEATURES: Final = {"group.version": 1, "share.version": 1, "transaction.version": 2}
"""Features of Kafka with their levels: consumer groups of KIP-848, share groups, producers that raise their epoch
(KIP-890).
"""
_FEATURES_EPOCH: Final = 0
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


async def handle(message: ApiVersionsRequest, request: KafkaRequest) -> ApiVersionsResponse:
    """Answer with all calls. Raises ``InvalidRequestError`` for a name of software that Kafka refuses."""
    names = (message.client_software_name, message.client_software_version)
    if request.version >= _WITH_SOFTWARE and not all(map(_SOFTWARE.fullmatch, names)):
        raise InvalidRequestError(
            f"client software {names[0]!r} of version {names[1]!r} is refused: name and version have letters, digits, "
            "dots and hyphens, with a letter or digit at both ends"
        )
    # Clients before version 4 refuse a range that begins at 0. It is left out for them (KIP-1022).
    supported = _FEATURES if request.version >= _WITH_ZERO else {}
    return ApiVersionsResponse(
        error_code=0,
        api_keys=request.state.api_versions,
        throttle_time_ms=0,
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in supported.items()
        ),
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in _FEATURES.items()
        ),
    )


def refuse(message: ApiVersionsRequest | None, version: int, error_code: int) -> ApiVersionsResponse:
    """Answer with an error, and the versions of this call, which a client needs to ask again."""
    own = ApiVersion(
        api_key=ApiKey.API_VERSIONS,
        min_version=ApiVersionsRequest.VERSION_MIN,
        max_version=ApiVersionsRequest.VERSION_MAX,
    )
    return ApiVersionsResponse(error_code=error_code, api_keys=(own,), throttle_time_ms=0)

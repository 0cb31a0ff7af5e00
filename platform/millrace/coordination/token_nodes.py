"""Nodes of delegation tokens (KIP-48, KIP-373).

Their JSON is that of Kafka 3.9 (``DelegationTokenManager``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

from millrace.coordination.json_node import JsonNode, dump_json
from millrace.coordination.paths import sanitized

_VERSION: Final = 3
_VERSIONS: Final = (1, 2, _VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenNode(JsonNode):
    """``/delegation_token/tokens/<token id>``. Principals are ``User:name``. Times are in ms since the epoch.

    The token's HMAC is not stored. It follows from the id and the secret key that all brokers have.
    """

    token_id: str
    owner: str
    requester: str
    """Principal that asked for the token. It differs from the owner if it may create tokens of other users."""
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    @property
    def users(self) -> frozenset[str]:
        """The principals that may see the token: ``TokenInformation.ownerOrRenewer``, which also has the requester."""
        return frozenset((self.owner, self.requester, *self.renewers))

    def encode(self) -> bytes:
        """Encode the node."""
        return dump_json(
            {
                "version": _VERSION,
                "owner": sanitized(self.owner),
                "tokenRequester": sanitized(self.requester),
                "renewers": [sanitized(each) for each in self.renewers],
                "issueTimestamp": self.issued_ms,
                "maxTimestamp": self.max_ms,
                "expiryTimestamp": self.expires_ms,
                "tokenId": self.token_id,
            }
        )

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> Self:
        if value["version"] not in _VERSIONS:
            raise ValueError(f"version {value['version']} is not supported: expected 1 to {_VERSION}")
        owner = unquote(value["owner"])
        return cls(
            token_id=str(value["tokenId"]),
            owner=owner,
            requester=unquote(value["tokenRequester"]) if "tokenRequester" in value else owner,
            renewers=tuple(unquote(each) for each in value["renewers"]),
            issued_ms=int(value["issueTimestamp"]),
            expires_ms=int(value["expiryTimestamp"]),
            max_ms=int(value["maxTimestamp"]),
        )

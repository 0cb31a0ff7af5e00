"""Operations that a client may do, as bits (KIP-430). Without an authorizer, these are all."""

from __future__ import annotations

from typing import Final

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12

TOPIC: Final = (_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP: Final = (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER: Final = (
    _CREATE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)
_NOT_ASKED: Final = -(2**31)


def bits(allowed: tuple[int, ...], *, is_wanted: bool) -> int:
    """Return the bits of operations, or Kafka's value for an answer that was not asked for."""
    return sum(1 << operation for operation in allowed) if is_wanted else _NOT_ASKED

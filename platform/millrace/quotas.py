"""Entities and keys of client quotas (``ClientQuotaEntity``, ``QuotaConfig``; KIP-546).

An entity is a user, a client id, both, or an address. The name ``None`` is the default of its type.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from millrace.errors import InvalidRequestError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

USER_KEYS: Final = {
    PRODUCER_BYTE_RATE: "bytes of Produce requests a second",
    CONSUMER_BYTE_RATE: "bytes of fetched records a second",
    REQUEST_PERCENTAGE: "processor time of calls, in percent of one processor",
    CONTROLLER_MUTATION_RATE: "created, added and deleted partitions a second",
}
"""Keys of users and client ids, with the limited quantity."""
IP_KEYS: Final = {CONNECTION_CREATION_RATE: "new connections a second"}
_WHOLE: Final = {PRODUCER_BYTE_RATE: 2**63 - 1, CONSUMER_BYTE_RATE: 2**63 - 1, CONNECTION_CREATION_RATE: 2**31 - 1}
"""Largest values of the keys whose values are whole numbers."""


class Match(IntEnum):
    """Match type of a filter, with Kafka's numbers (``DescribeClientQuotasRequest``).

    A filter selects the entity of a name, the default of an entity type, or every entity of a type.
    """

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True, order=True)
class QuotaEntity:
    """Entity that a quota applies to (Kafka's ``ClientQuotaEntity``).

    ``parts`` are pairs of a type and a name, in the order of ``ENTITY_TYPES``.
    """

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, str | None]]) -> Self:
        """Make an entity. Raises ``InvalidRequestError`` for types that no quota can be for."""
        found: dict[str, str | None] = {}
        for kind, name in parts:
            check_type(kind)
            if kind in found:
                raise InvalidRequestError(f"the entity has two names of the type {kind}: name one")
            if name == "":
                raise InvalidRequestError(f"the name of the type {kind} is empty: name a {kind}, or its default")
            found[kind] = name
        if not found:
            raise InvalidRequestError(f"the entity is empty: name one of {', '.join(ENTITY_TYPES)}")
        if IP in found and len(found) > 1:
            raise InvalidRequestError("an address has quotas of its own, without a user or client id: name it alone")
        address = found.get(IP)
        if address is not None:
            found[IP] = _address(address)
        return cls(tuple((kind, found[kind]) for kind in ENTITY_TYPES if kind in found))

    @property
    def keys(self) -> Mapping[str, str]:
        """Keys of this entity's quotas, with the limited quantity."""
        return IP_KEYS if self.parts[0][0] == IP else USER_KEYS

    def __str__(self) -> str:
        """Return ``user alice, default client-id``."""
        return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in self.parts)


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """One part of the entities to describe. ``name`` is that of an exact match."""

    kind: str
    match: Match = Match.ANY
    name: str = ""

    def __post_init__(self) -> None:
        """Raise ``InvalidRequestError`` for an unknown type."""
        check_type(self.kind)

    def selects(self, entity: QuotaEntity) -> bool:
        """Return whether the entity has this part."""
        wanted = self.name
        if self.kind == IP and self.match is Match.EXACT:
            with contextlib.suppress(InvalidRequestError):  # no entity has another name
                wanted = _address(wanted)
        for kind, name in entity.parts:
            if kind == self.kind:
                return {Match.EXACT: name == wanted, Match.DEFAULT: name is None, Match.ANY: True}[self.match]
        return False


def check_type(kind: str) -> None:
    """Raise ``InvalidRequestError`` for a type of entities that has no quotas."""
    if kind not in ENTITY_TYPES:
        raise InvalidRequestError(f"{kind!r} has no quotas: the types of entities are {', '.join(ENTITY_TYPES)}")


def check_filters(filters: Iterable[QuotaFilter]) -> None:
    """Raise ``InvalidRequestError`` for filters that no entity can pass, as Kafka does."""
    kinds = [each.kind for each in filters]
    if len(set(kinds)) < len(kinds):
        raise InvalidRequestError(f"the filters name a type twice ({', '.join(kinds)}): name each once")
    if IP in kinds and len(kinds) > 1:
        raise InvalidRequestError("an address has quotas of its own, without a user or client id: filter by ip alone")


def check_value(entity: QuotaEntity, key: str, value: float) -> None:
    """Raise ``InvalidRequestError`` for a quota that the entity cannot have."""
    check_key(entity, key)
    what = f"{key}={value:g} of {entity}"
    if not math.isfinite(value) or value <= 0:
        raise InvalidRequestError(
            f"{what} is impossible: set a number above 0 ({entity.keys[key]}), or remove the quota. An ACL (DENY) "
            "refuses a client altogether"
        )
    largest = _WHOLE.get(key)
    if largest is not None and value != int(value):
        raise InvalidRequestError(f"{what} is impossible: set a whole number ({entity.keys[key]})")
    if largest is not None and value > largest:
        raise InvalidRequestError(f"{what} is impossible: the largest value is {largest}")


def check_key(entity: QuotaEntity, key: str) -> None:
    """Raise ``InvalidRequestError`` for a key that the entity does not have."""
    if key not in entity.keys:
        raise InvalidRequestError(f"{key} is no quota of {entity}: its quotas are {', '.join(entity.keys)}")


def value_text(key: str, value: float) -> str:
    """Return a value as Kafka stores it: whole numbers of bytes and connections, other numbers as floats."""
    return str(int(value)) if key in _WHOLE else str(float(value))


def _address(name: str) -> str:
    """Return the one form of an address, which for an IPv4 client of a socket for both families is that of IPv4."""
    try:
        address = ipaddress.ip_address(name)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    except ValueError:
        raise InvalidRequestError(f"{name} is no IP address: name one such as 192.0.2.7 or 2001:db8::7") from None

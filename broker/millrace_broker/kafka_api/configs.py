"""Kafka's numbers for configurations."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, get_args

from millrace.config.base import Config, field_name
from millrace.config.broker import BrokerConfig
from millrace.config.client_metrics import ClientMetricsConfig
from millrace.config.dynamic import is_dynamic
from millrace.config.group import GroupConfig
from millrace.config.listener_options import shared_name
from millrace.config.topic import TopicConfig
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.configs import CLIENT_METRICS, is_list

SOURCES: Final = {
    "DYNAMIC_TOPIC_CONFIG": 1,
    "DYNAMIC_BROKER_CONFIG": 2,
    "DYNAMIC_DEFAULT_BROKER_CONFIG": 3,
    "STATIC_BROKER_CONFIG": 4,
    "DEFAULT_CONFIG": 5,
    "DYNAMIC_BROKER_LOGGER_CONFIG": 6,
    "DYNAMIC_CLIENT_METRICS_CONFIG": 7,
    "DYNAMIC_GROUP_CONFIG": 8,
}
_OWN_SOURCES: Final = {
    pb.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    pb.BROKER: "DYNAMIC_BROKER_CONFIG",
    CLIENT_METRICS: "DYNAMIC_CLIENT_METRICS_CONFIG",
    pb.GROUP_RESOURCE: "DYNAMIC_GROUP_CONFIG",
}

_BOOLEAN, _STRING, _LONG, _DOUBLE, _LIST, _PASSWORD = 1, 2, 5, 6, 7, 9
_TYPES: Final[dict[Any, int]] = {bool: _BOOLEAN, int: _LONG, float: _DOUBLE}
_CLASSES: Final[dict[int, type[Config]]] = {
    pb.TOPIC: TopicConfig,
    pb.BROKER: BrokerConfig,
    pb.GROUP_RESOURCE: GroupConfig,
    CLIENT_METRICS: ClientMetricsConfig,
}


class Operation(IntEnum):
    """Kind of a change of one option (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def resource(kind: int, name: str) -> pb.ConfigResource:
    """Return a resource. Its types have Kafka's numbers, which the handlers check."""
    return pb.ConfigResource(type=kind, name=name)  # type: ignore[arg-type]  # an open enumeration


def own_source(kind: int, name: str) -> str:
    """Return the source of options that are set for a resource itself, and can be deleted there."""
    if kind == pb.BROKER and not name:
        return "DYNAMIC_DEFAULT_BROKER_CONFIG"
    return _OWN_SOURCES.get(kind, "")


def type_of(kind: int, option: str) -> int:
    """Return Kafka's number of the type of an option."""
    if kind == pb.BROKER_LOGGER:
        return _STRING
    if BrokerConfig.is_secret(option):
        return _PASSWORD
    if is_list(option):
        return _LIST
    model = _CLASSES.get(kind)
    field = None if model is None else model.model_fields.get(field_name(shared_name(option)))
    if field is None:
        return _STRING
    kinds = (field.annotation, *get_args(field.annotation))
    return next((_TYPES[each] for each in kinds if each in _TYPES), _STRING)


_READ_ONLY_IN_KAFKA: Final = ("advertised.listeners",)
"""Options that change here as in Kafka 3.9. Kafka 4 describes them as read-only, and its clients expect that."""


def is_read_only(kind: int, option: str) -> bool:
    """Return whether an option cannot be changed while a broker runs, as Kafka 4 describes its options."""
    return kind == pb.BROKER and (option in _READ_ONLY_IN_KAFKA or not is_dynamic(option))

"""Kafka's numbers for configurations."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, get_args

from annotated_types import Le

from millrace.config.base import Config, field_name
from millrace.config.broker import BrokerConfig
from millrace.config.client_metrics import ClientMetricsConfig
from millrace.config.dynamic import is_dynamic
from millrace.config.group import GroupConfig
from millrace.config.integers import INT_MAX, LONG_MAX, SHORT_MAX
from millrace.config.listener_options import shared_name
from millrace.config.topic import TopicConfig
from millrace.config.topic_defaults import TOPIC_DEFAULTS
from millrace.errors import InvalidConfigError, InvalidRequestError, MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.configs import CLIENT_METRICS, is_list
from millrace_broker.kafka_api.error_codes import code_of

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

_BOOLEAN, _STRING, _INT, _SHORT, _LONG, _DOUBLE, _LIST, _PASSWORD = 1, 2, 3, 4, 5, 6, 7, 9
_TYPES: Final[dict[Any, int]] = {bool: _BOOLEAN, float: _DOUBLE}
_LONG_IN_KAFKA: Final = frozenset(
    (
        "connections.max.idle.ms",
        "connections.max.reauth.ms",
        "leader.imbalance.check.interval.seconds",
        "log.cleaner.backoff.ms",
        "log.retention.check.interval.ms",
        "offsets.retention.check.interval.ms",
        "remote.log.manager.task.interval.ms",
        "replica.high.watermark.checkpoint.interval.ms",
        "replica.lag.time.max.ms",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    )
)
"""Options of type ``long`` whose values here are at most those of an ``int``."""
_TOPIC_OPTIONS: Final = {own: topic for topic, owns in TOPIC_DEFAULTS.items() for own, _ in owns}
"""Topic options by the broker options that are their defaults."""
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


def code_of_change(kind: int, error: MillraceError) -> int:
    """Return the code of a refused change. As in Kafka, a wrong value of a broker's option is an invalid request."""
    if kind == pb.BROKER and isinstance(error, InvalidConfigError):
        return InvalidRequestError.code
    return code_of(error)


def type_of(kind: int, option: str) -> int:
    """Return Kafka's number of the type of an option."""
    if kind == pb.BROKER_LOGGER:
        return _STRING
    if BrokerConfig.is_secret(option):
        return _PASSWORD
    if is_list(option):
        return _LIST
    if kind == pb.BROKER and option in _TOPIC_OPTIONS:
        return type_of(pb.TOPIC, _TOPIC_OPTIONS[option])
    model = _CLASSES.get(kind)
    field = None if model is None else model.model_fields.get(field_name(shared_name(option)))
    if field is None:
        return _STRING
    kinds = (field.annotation, *get_args(field.annotation))
    if int in kinds:
        limit = next((each.le for each in field.metadata if isinstance(each, Le)), LONG_MAX)
        is_long = option in _LONG_IN_KAFKA or limit > INT_MAX  # type: ignore[operator]  # a limit of an integer
        return _LONG if is_long else _SHORT if limit == SHORT_MAX else _INT
    return next((_TYPES[each] for each in kinds if each in _TYPES), _STRING)


_READ_ONLY_IN_KAFKA: Final = ("advertised.listeners",)
"""Options that change here as in Kafka 3.9. Kafka 4 describes them as read-only, and its clients expect that."""


def is_read_only(kind: int, option: str) -> bool:
    """Return whether an option cannot be changed while a broker runs, as Kafka 4 describes its options."""
    return kind == pb.BROKER and (option in _READ_ONLY_IN_KAFKA or not is_dynamic(option))

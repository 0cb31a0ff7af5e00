"""Options of a write, those of Spark's Kafka sink included.

``options.reference`` defines all of them. Every option is checked before anything is written; a wrong or inapplicable
one raises ``UsageError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from millrace.errors import UsageError
from pyspark_millrace.options.given import GivenOptions
from pyspark_millrace.options.reference import WRITE_OPTIONS, names_of

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Longest wait of a task's records for the driver's commit: the brokers' default maximum."""


class DeliveryGuarantee(StrEnum):
    """Delivery guarantee of a write when tasks, executors or the driver fail."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of one write, checked. Without ``topic`` a column names the topic of each row.

    ``transaction_app_id`` names a series of writes, and ``transaction_version`` numbers them, as in Delta. A stream
    numbers its micro-batches itself.
    """

    bootstrap_servers: str
    client_config: tuple[tuple[str, str], ...] = field(repr=False)
    topic: str | None
    include_headers: bool
    guarantee: DeliveryGuarantee
    transaction_app_id: str | None
    transaction_version: int | None

    @property
    def is_exactly_once(self) -> bool:
        """True if tasks write in transactions that the driver commits."""
        return self.guarantee is DeliveryGuarantee.EXACTLY_ONCE

    def producer_config(self, external_id: str | None) -> dict[str, str | int]:
        """Return the settings of a producer, transactional if an external id is given."""
        config: dict[str, str | int] = {**dict(self.client_config), "bootstrap.servers": self.bootstrap_servers}
        if external_id is not None:
            config |= {"transactional.id": external_id, "coordinator.key": external_id}
            config.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
        return config


def parse_sink_options(values: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Check all options of a write. Raises ``UsageError`` for the first unknown, unsupported or wrong one."""
    given = GivenOptions(values)
    given.refuse_unknown(names_of(WRITE_OPTIONS), _NOT_SUPPORTED, _DECIDED_BY_THE_SINK)
    options = SinkOptions(
        bootstrap_servers=given.bootstrap_servers(),
        client_config=tuple(sorted(given.client_settings("bootstrap.servers").items())),
        topic=_name(given, "topic"),
        include_headers=given.flag("includeHeaders", default=True),
        guarantee=given.choice("deliveryGuarantee", DeliveryGuarantee.EXACTLY_ONCE),
        transaction_app_id=_name(given, "txnAppId"),
        transaction_version=given.whole_number("txnVersion", minimum=0),
    )
    _check_together(options, is_stream=is_stream)
    return options


_NOT_SUPPORTED: Final = {
    "path": "save() and start() take no path; name the topic by the option or a column topic",
    "subscribe": "the option is for reading; name the topic to write to by the option or a column topic",
    "subscribePattern": "the option is for reading; name the topic to write to by the option or a column topic",
    "assign": "the option is for reading; rows are sent to the partition that a column partition names",
}

# Settings of a Kafka producer that the sink controls itself; Spark's sink refuses them as well.
_DECIDED_BY_THE_SINK: Final = {
    "key.serializer": "the type of the column key (STRING or BINARY) decides; leave it out",
    "value.serializer": "the type of the column value (STRING or BINARY) decides; leave it out",
    "transactional.id": "set txnAppId instead",
    "coordinator.key": "set txnAppId instead",
}


def _name(given: GivenOptions, option: str) -> str | None:
    text = given.text(option)
    if text is not None and not text.strip():
        raise UsageError(f"{option}={text!r}: expected a name")
    return None if text is None else text.strip()


def _check_transactional(client_config: Mapping[str, str]) -> None:
    """Refuse settings of a producer with which it could not write in transactions."""
    for name, refused in (("acks", ("0", "1")), ("enable.idempotence", ("false",))):
        value = client_config.get(name, "")
        if value.strip().lower() in refused:
            raise UsageError(
                f"kafka.{name}={value!r} is not possible with deliveryGuarantee=exactly-once, which writes in "
                "transactions: leave it out, or set deliveryGuarantee=at-least-once"
            )


def _check_together(options: SinkOptions, *, is_stream: bool) -> None:
    app_id, version = options.transaction_app_id, options.transaction_version
    if options.is_exactly_once:
        _check_transactional(dict(options.client_config))
    if not options.is_exactly_once:
        if app_id is not None or version is not None:
            raise UsageError("txnAppId and txnVersion are for deliveryGuarantee=exactly-once: leave them out")
    elif is_stream and version is not None:
        raise UsageError(f"txnVersion={version}: a stream numbers its micro-batches itself; leave it out")
    elif not is_stream and (app_id is None) != (version is None):
        raise UsageError(
            "txnAppId and txnVersion go together: give the name of a series of writes, and the number of this write"
        )

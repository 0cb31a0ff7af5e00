"""Which of a broker's options can be changed while it runs, and what holds when some of them were.

Sources: Kafka's ``DynamicBrokerConfig`` (KIP-226), whose rules and names of options these are, and ``DynamicConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from millrace.config.broker import TOPIC_DEFAULTS, BrokerConfig
from millrace.config.cluster import ZOOKEEPER_PREFIX
from millrace.errors import InvalidConfigError

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
"""Bytes a second, as Kafka's tool for reassignments sets them. They are in no broker's file."""

THREADS: Final = ("num.io.threads", "num.replica.fetchers", "log.cleaner.threads")
"""Numbers of threads, or what is one in Kafka, change by half or by double at most, as in Kafka."""

OF_BROKERS: Final = (
    *THREADS,
    "max.connections",
    "producer.id.expiration.ms",
    "transaction.partition.verification.enable",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.backoff.ms",
)

OF_TOPICS: Final = {names[0][0]: topic_name for topic_name, names in TOPIC_DEFAULTS.items()}
"""Defaults of topics by the strongest of their names at a broker: the others are the file's alone, as in Kafka."""

DYNAMIC_OPTIONS: Final = frozenset((*OF_TOPICS, *OF_BROKERS, *RATES))

_WEAKER: Final = {name: names[0][0] for names in TOPIC_DEFAULTS.values() for name, _ in names[1:]}


def check_dynamic(names: Iterable[str]) -> None:
    """Raise ``InvalidConfigError`` unless these options can be changed while a broker runs."""
    for name in names:
        if name in _WEAKER:
            raise InvalidConfigError(f"{name} cannot be changed while a broker runs: set {_WEAKER[name]}")
        if name not in BrokerConfig.option_names() and name not in RATES:
            raise InvalidConfigError(
                f"unknown option {name}: 'millrace configs describe brokers <id> --all' lists them"
            )
        if name not in DYNAMIC_OPTIONS:
            raise InvalidConfigError(
                f"{name} cannot be changed while a broker runs: edit its properties file and restart it. "
                f"What can: {', '.join(sorted(DYNAMIC_OPTIONS))}"
            )


def with_dynamic(file: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """What holds for a broker that has ``file``, with options on top that were set while it ran.

    Raises ``InvalidConfigError`` for what can't be changed and for wrong values.
    """
    check_dynamic(values)
    for name in RATES:
        if name in values and not (values[name].isdigit() and int(values[name]) > 0):
            raise InvalidConfigError(f"{name}={values[name]}: expected bytes a second, from 1")
    own = {name: value for name, value in file.options().items() if not name.startswith(ZOOKEEPER_PREFIX)}
    set_now = {name: value for name, value in values.items() if name not in RATES}
    config = BrokerConfig.load({**own, **set_now})
    return config.model_copy(update={"zookeeper": file.zookeeper_config})


def check_threads(before: BrokerConfig, after: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` for a change of a number of threads that is too large to be made at once."""
    old, new = before.options(), after.options()
    for name in THREADS:
        least, most = max(1, old[name] // 2), 2 * old[name]
        if not least <= new[name] <= most:
            raise InvalidConfigError(
                f"{name}={new[name]}: the broker has {old[name]}, and takes {least} to {most} while it runs"
            )

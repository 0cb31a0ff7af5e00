"""Dynamic broker options, and the configuration that results from them.

Sources: Kafka's ``DynamicBrokerConfig`` (KIP-226), whose rules and option names are used, and ``DynamicConfig``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from millrace.config.base import field_name
from millrace.config.broker import BrokerConfig
from millrace.config.cluster import ZOOKEEPER_PREFIX
from millrace.config.integers import LONG_MAX
from millrace.config.listener_options import shared_name, without_mechanism
from millrace.config.security_options import ListenerSecurity
from millrace.config.topic_defaults import TOPIC_DEFAULTS
from millrace.config.update_modes import UpdateMode, update_mode
from millrace.errors import InvalidConfigError

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
MOVE_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES: Final = {
    LEADER_RATE: "Most bytes a second that are sent to throttled replicas.",
    FOLLOWER_RATE: "Most bytes a second that throttled replicas fetch.",
    MOVE_RATE: "Most bytes a second that are copied from one log directory of this broker to another.",
}
"""Bytes per second, as Kafka's reassignment tool sets them, with their meaning. They are in no broker's file."""

_RATE: Final = re.compile("[0-9]{1,19}")

THREADS: Final = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "log.cleaner.threads",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.reader.threads",
)
"""Numbers of threads (in Kafka or here). As in Kafka, one change may at most halve or double them."""

_OF_TOPICS: Final = frozenset(names[0][0] for names in TOPIC_DEFAULTS.values())
"""Broker option of highest precedence of each topic default. Other names are static, as in Kafka."""
_WEAKER: Final = {name: names[0][0] for names in TOPIC_DEFAULTS.values() for name, _ in names[1:]}
"""Dynamic options of topic defaults by the static names."""
_OF_ALL_LISTENERS: Final = frozenset(ListenerSecurity.option_names())


def mode_of(option: str) -> UpdateMode:
    """Return the update mode of a broker option. An unknown one is read-only."""
    if option in _OF_TOPICS or option in RATES:
        return UpdateMode.CLUSTER_WIDE
    if shared_name(option) != option and without_mechanism(option) == option:
        return UpdateMode.PER_BROKER
    field = field_name(option)
    return update_mode(BrokerConfig, field) if field in BrokerConfig.model_fields else UpdateMode.READ_ONLY


DYNAMIC_OPTIONS: Final = frozenset(
    name for name in (*BrokerConfig.option_names(), *RATES) if mode_of(name) is not UpdateMode.READ_ONLY
)


def is_dynamic(option: str) -> bool:
    """Return whether an option can be changed while a broker runs."""
    return mode_of(option) is not UpdateMode.READ_ONLY


def is_per_broker(option: str) -> bool:
    """Return whether an option can be changed for one broker alone."""
    return mode_of(option) is UpdateMode.PER_BROKER


def check_dynamic(names: Iterable[str]) -> None:
    """Raise ``InvalidConfigError`` unless all of these options are dynamic."""
    for name in names:
        if name in _WEAKER:
            raise InvalidConfigError(f"{name} cannot be changed while a broker runs: set {_WEAKER[name]}")
        if is_dynamic(name):
            continue
        if without_mechanism(name) != name:
            raise InvalidConfigError(
                f"{name} cannot be changed while a broker runs: set {without_mechanism(name)}, with the values of all "
                "mechanisms together"
            )
        if name in _OF_ALL_LISTENERS:
            raise InvalidConfigError(
                f"{name} of all listeners cannot be changed while a broker runs: set listener.name.<name>.{name} of one"
            )
        if name not in BrokerConfig.option_names() and name not in RATES:
            raise InvalidConfigError(
                f"unknown option {name}: 'millrace configs describe brokers <id> --all' lists them"
            )
        raise InvalidConfigError(
            f"{name} cannot be changed while a broker runs: edit its properties file and restart it. "
            f"The dynamic options are {', '.join(sorted(DYNAMIC_OPTIONS))}, and listener.name.<name>.<option>"
        )


def with_dynamic(file: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """Return a broker's configuration: ``file`` overridden by dynamic options.

    Raises ``InvalidConfigError`` for static options and for wrong values.
    """
    check_dynamic(values)
    for name in RATES:
        if name in values and not (_RATE.fullmatch(values[name]) and 0 < int(values[name]) <= LONG_MAX):
            raise InvalidConfigError(f"{name}={values[name]}: expected bytes per second, at least 1")
    own = {name: value for name, value in file.options().items() if not name.startswith(ZOOKEEPER_PREFIX)}
    set_now = {name: value for name, value in values.items() if name not in RATES}
    config = BrokerConfig.load({**own, **set_now})
    return config.model_copy(update={"zookeeper": file.zookeeper_config})


def check_threads(before: BrokerConfig, after: BrokerConfig) -> None:
    """Raise ``InvalidConfigError`` if a number of threads changes by more than a factor of two."""
    old, new = before.options(), after.options()
    for name in THREADS:
        least, most = max(1, old[name] // 2), 2 * old[name]
        if not least <= new[name] <= most:
            raise InvalidConfigError(
                f"{name}={new[name]}: the broker has {old[name]}, and accepts {least} to {most} while it runs"
            )

"""Dynamic broker options, for all brokers and for each, over the file's options.

Invariants
* Options are validated as a whole before they are written. Invalid options from other writers are ignored and logged.
* ``current`` is the file, overridden by the options of all brokers, overridden by the options of this broker.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.dynamic import RATES, check_dynamic, check_threads, with_dynamic
from millrace.coordination import Coordination, paths
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.metadata.config_nodes import alter_options, check_option_changes, read_config
from millrace_broker.metadata.registration import live_ids

_logger = logging.getLogger(__name__)

ALL_BROKERS: Final = ""
"""Name of all brokers together, as in Kafka's requests."""
_DEFAULT_NODE: Final = "<default>"


class BrokerConfigs:
    """Dynamic options of brokers. Any thread may read; blocking methods are for the administration thread."""

    def __init__(self, coordination: Coordination, file: BrokerConfig) -> None:
        self._coordination: Final = coordination
        self.file: Final = file
        self.for_all: Mapping[str, str] = {}
        self.for_this: Mapping[str, str] = {}
        self.current = file
        self.reload()

    def concerns_this(self, name: str) -> bool:
        """Return whether options of ``name`` (a broker id, ``ALL_BROKERS``, or a node name) apply to this broker."""
        return name in (ALL_BROKERS, _DEFAULT_NODE, str(self.file.broker_id))

    def reload(self) -> None:
        """Read the dynamic options again."""
        self.for_all = self._usable(read_config(self._coordination, _path(ALL_BROKERS)))
        self.for_this = self._usable(read_config(self._coordination, _path(str(self.file.broker_id))))
        self.current = with_dynamic(self.file, {**self.for_all, **self.for_this})

    def rate(self, name: str) -> float:
        """Return one of ``RATES``, in bytes per second; infinity if not set."""
        assert name in RATES
        return float({**self.for_all, **self.for_this}.get(name, math.inf))

    def alter(self, name: str, values: Mapping[str, str], removals: set[str], *, validate_only: bool = False) -> None:
        """Set and remove options of one broker, or of all (``ALL_BROKERS``). They are in force after ``reload``.

        Raises ``InvalidConfigError``, ``InvalidRequestError``; then nothing has changed.
        """
        if name != ALL_BROKERS and not name.isdigit():
            raise InvalidRequestError(f"broker {name!r}: expected a broker id, or an empty name for all brokers")
        check_option_changes(f"broker {name}", values, removals)
        check_dynamic(removals)
        path = _path(name)
        if name != ALL_BROKERS and self._coordination.exists(path) is None:
            self._check_alive(int(name))
        check = partial(self._check, name, values)
        alter_options(self._coordination, path, values, removals, check, validate_only=validate_only)

    def _check_alive(self, broker_id: int) -> None:
        """Raise unless the broker is alive, because an unknown broker without options is probably a typing error."""
        alive = live_ids(self._coordination)
        if broker_id not in alive:
            raise InvalidRequestError(
                f"there is no broker {broker_id}: the live brokers are {', '.join(map(str, alive))}"
            )

    def _check(self, name: str, values: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]) -> None:
        with_dynamic(self.file, values)  # also if another layer overrides it
        if self.concerns_this(name):
            layers = (after, self.for_this) if name == ALL_BROKERS else (self.for_all, after)
            check_threads(self.current, with_dynamic(self.file, {**self._usable(layers[0]), **layers[1]}))

    def _usable(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Return the options that are valid here, because other tools may write any option."""
        usable = {}
        for name, value in values.items():
            try:
                with_dynamic(self.file, {name: value})
            except InvalidConfigError as error:
                _logger.error("an invalid broker option is ignored: %s", error.message)
            else:
                usable[name] = value
        return usable


def _path(name: str) -> str:
    return paths.config_path(f"brokers/{int(name) if name else _DEFAULT_NODE}")

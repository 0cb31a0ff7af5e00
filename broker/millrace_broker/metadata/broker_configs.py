"""What was configured of brokers while they ran, over what this one's file says: for all of them, and for each.

Invariants
* What is written was checked as a whole before; of what others have written, what is wrong here is left out, and told.
* ``current`` is the file with what was set for all brokers on top, and on top of that what was set for this one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.dynamic import RATES, check_dynamic, check_threads, with_dynamic
from millrace.coordination import Coordination, Operation, paths
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.metadata.config_nodes import change_config, changed_options, read_config
from millrace_broker.metadata.registration import live_ids

_logger = logging.getLogger(__name__)

ALL_BROKERS: Final = ""
"""The name of all brokers together, as in Kafka's requests."""
_DEFAULT_NODE: Final = "<default>"


class BrokerConfigs:
    """The options of brokers. Reading is for any thread; what blocks is for the administration thread."""

    def __init__(
        self, coordination: Coordination, file: BrokerConfig, notices: Callable[[str], list[Operation]]
    ) -> None:
        """``notices`` is what to write with a change of an entity, so that other brokers hear of it."""
        self._coordination: Final = coordination
        self._file: Final = file
        self._notices: Final = notices
        self.for_all: Mapping[str, str] = {}
        self.for_this: Mapping[str, str] = {}
        self.current = file
        self.reload()

    def concerns_this(self, name: str) -> bool:
        """Whether the options of ``name`` (a broker's id, ``ALL_BROKERS``, or the name of a node) hold here."""
        return name in (ALL_BROKERS, _DEFAULT_NODE, str(self._file.broker_id))

    def reload(self) -> None:
        """Read anew what was set."""
        self.for_all = self._usable(read_config(self._coordination, _path(ALL_BROKERS)))
        self.for_this = self._usable(read_config(self._coordination, _path(str(self._file.broker_id))))
        self.current = with_dynamic(self._file, {**self.for_all, **self.for_this})

    def rate(self, name: str) -> float:
        """Bytes a second that may be exchanged with throttled replicas: one of ``RATES``; infinity if not set."""
        assert name in RATES
        return float({**self.for_all, **self.for_this}.get(name, math.inf))

    def alter(self, name: str, values: Mapping[str, str], removals: set[str], *, validate_only: bool = False) -> None:
        """Set and remove options of a broker, or of all of them (``ALL_BROKERS``). It is in force after ``reload``.

        Raises ``InvalidConfigError``, ``InvalidRequestError``; then nothing has changed.
        """
        if name != ALL_BROKERS and not name.isdigit():
            raise InvalidRequestError(f"broker {name!r}: a broker is named by its id, all of them by nothing")
        both = sorted(removals & values.keys())
        if both:
            raise InvalidRequestError(f"{', '.join(both)} of broker {name} is both set and deleted")
        check_dynamic(removals)
        path = _path(name)
        if name != ALL_BROKERS and self._coordination.exists(path) is None:
            self._check_alive(int(name))

        def change(present: Mapping[str, str]) -> dict[str, str]:
            after = changed_options(present, values, removals)
            self._check(name, values, after)
            return after

        if validate_only:
            change(read_config(self._coordination, path))
            return
        change_config(self._coordination, path, change, self._notices(path.removeprefix(f"{paths.CONFIGS}/")))

    def _check_alive(self, broker_id: int) -> None:
        """A broker that nobody ever configured has to be there: else it is a mistyped one."""
        alive = live_ids(self._coordination)
        if broker_id not in alive:
            raise InvalidRequestError(f"there is no broker {broker_id}: alive are {', '.join(map(str, alive))}")

    def _check(self, name: str, values: Mapping[str, str], after: Mapping[str, str]) -> None:
        with_dynamic(self._file, values)  # also where another layer hides it
        if self.concerns_this(name):
            layers = (after, self.for_this) if name == ALL_BROKERS else (self.for_all, after)
            check_threads(self.current, with_dynamic(self._file, {**self._usable(layers[0]), **layers[1]}))

    def _usable(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """What of it means something here: tools of others may write what they like."""
        usable = {}
        for name, value in values.items():
            try:
                with_dynamic(self._file, {name: value})
            except InvalidConfigError as error:
                _logger.error("an option of brokers is passed over: %s", error.message)
            else:
                usable[name] = value
        return usable


def _path(name: str) -> str:
    return paths.config_path(f"brokers/{int(name) if name else _DEFAULT_NODE}")

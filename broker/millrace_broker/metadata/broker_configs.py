"""Dynamic broker options, Kafka's ``DynamicBrokerConfig``.

Options for all brokers, and for one broker, override the options of the properties file.

Invariants:

* Options are validated as a whole before they are written, by all parts that they concern. Invalid options from other
  writers are ignored and logged.
* A secret is stored encrypted. It is decrypted in memory alone.
* ``current`` is the file, overridden by the options of all brokers, overridden by the options of this broker.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.dynamic import RATES, check_dynamic, check_threads, is_per_broker, with_dynamic
from millrace.config.integers import INT_MAX
from millrace.config.listener_options import shared_name
from millrace.coordination import Coordination, paths
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.metadata.config_nodes import alter_options, change_config, check_option_changes, read_config
from millrace_broker.metadata.option_changes import ListChange, OptionChange, plain_values
from millrace_broker.metadata.password_encoder import PasswordEncoder
from millrace_broker.metadata.registration import live_ids

_logger = logging.getLogger(__name__)

ALL_BROKERS: Final = ""
"""Name of all brokers together, as in Kafka's requests."""
_DEFAULT_NODE: Final = "<default>"
_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")


class BrokerConfigs:
    """Dynamic options of brokers. Any thread may read; blocking methods are for the administration thread."""

    def __init__(self, coordination: Coordination, file: BrokerConfig) -> None:
        self._coordination: Final = coordination
        self.file: Final = file
        self.for_all: Mapping[str, str] = {}
        self.for_this: Mapping[str, str] = {}
        self.current = file
        self.checks: Final[list[Callable[[BrokerConfig, BrokerConfig], None]]] = []
        """Checks of a change, by the present and the next configuration. They raise ``InvalidConfigError``."""
        self._decoder: Final = PasswordEncoder(file.password_encoder_secret, file)
        self._encoder: Final = self._decoder if file.password_encoder_secret else None
        if file.password_encoder_old_secret:
            self._reencode(PasswordEncoder(file.password_encoder_old_secret, file))
        self.reload()

    def concerns_this(self, name: str) -> bool:
        """Return whether options of ``name`` (a broker id, ``ALL_BROKERS``, or a node name) apply to this broker."""
        return name in (ALL_BROKERS, _DEFAULT_NODE, str(self.file.broker_id))

    def reload(self) -> None:
        """Read the dynamic options again."""
        self.for_all = self._usable(ALL_BROKERS, read_config(self._coordination, _path(ALL_BROKERS)))
        own = str(self.file.broker_id)
        self.for_this = self._usable(own, read_config(self._coordination, _path(own)))
        self.current = with_dynamic(self.file, {**self.for_all, **self.for_this})

    def rate(self, name: str) -> float:
        """Return one of ``RATES``, in bytes per second; infinity if not set."""
        assert name in RATES
        return float({**self.for_all, **self.for_this}.get(name, math.inf))

    def alter(
        self,
        name: str,
        values: Mapping[str, OptionChange],
        removals: set[str],
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set and remove options of one broker, or of all (``ALL_BROKERS``). They are in force after ``reload``.

        Raises ``InvalidConfigError``, ``InvalidRequestError``; then nothing has changed.
        """
        if name != ALL_BROKERS and not _is_broker_id(name):
            raise InvalidRequestError(f"broker {name!r}: expected a broker id, or an empty name for all brokers")
        check_option_changes(f"broker {name}", values, removals)
        check_dynamic((*values, *removals))
        self._check_own(name, values, removals)
        stored = {
            option: value if isinstance(value, ListChange) else self._encoded(option, value)
            for option, value in values.items()
        }
        path = _path(name)
        if name != ALL_BROKERS and self._coordination.exists(path) is None:
            self._check_alive(int(name))

        def check(before: Mapping[str, str], after: Mapping[str, str]) -> None:
            removed = before.keys() - after.keys()
            if replaces and name != ALL_BROKERS:
                self._check_own(name, (), removed)
            self._check(name, before, plain_values(values, after), removed)

        alter_options(
            self._coordination,
            path,
            stored,
            removals,
            check,
            inherited=partial(self._inherited, name),
            replaces=replaces,
            validate_only=validate_only,
        )

    def _inherited(self, name: str, option: str) -> str:
        """Return the list of an option that ``name`` does not set. Raises ``InvalidRequestError``.

        For all brokers it is the option's default, because brokers may have different files. A listener without a list
        of its own has that of all listeners.
        """
        if name == ALL_BROKERS:
            return _list(BrokerConfig.load({}).options().get(option))
        if not self.concerns_this(name):
            raise InvalidRequestError(f"only broker {name} has its {option}: send the request to broker {name}")
        below = with_dynamic(self.file, self.for_all).options()
        return _list(below.get(option, below.get(shared_name(option))))

    def _check_own(self, name: str, values: Iterable[str], removals: Iterable[str]) -> None:
        """Raise if an option for one broker alone is to be changed for all, or for another broker than this.

        Options of a broker that is not alive can be removed here, because they may prevent that broker's start.
        """
        per_broker = ", ".join(sorted(filter(is_per_broker, (*values, *removals))))
        if per_broker and name == ALL_BROKERS:
            raise InvalidConfigError(f"{per_broker} is an option of one broker and not of all: name a broker id")
        if not per_broker or self.concerns_this(name):
            return
        if any(map(is_per_broker, values)) or int(name) in live_ids(self._coordination):
            raise InvalidRequestError(
                f"only broker {name} can validate its {per_broker}: send the request to broker {name}"
            )

    def _encoded(self, option: str, value: str) -> str:
        """Return an option's value as it is stored. Raises ``InvalidConfigError`` for a password without a secret."""
        if not BrokerConfig.is_secret(option):
            return value
        if self._encoder is None:
            raise InvalidConfigError(
                f"{option} is a secret, and this broker has no password.encoder.secret to encrypt it: set that in its "
                "properties file, and restart it"
            )
        return self._encoder.encode(value)

    def _reencode(self, old: PasswordEncoder) -> None:
        """Encrypt this broker's passwords by the present secret, where an earlier one encrypted them."""

        def change(present: Mapping[str, str]) -> dict[str, str]:
            return {option: self._reencoded(option, value, old) for option, value in present.items()}

        path = _path(str(self.file.broker_id))
        present = read_config(self._coordination, path)
        if change(present) != present:
            change_config(self._coordination, path, change)
            _logger.info("the passwords among the dynamic options are encrypted by the present password.encoder.secret")

    def _reencoded(self, option: str, value: str, old: PasswordEncoder) -> str:
        if not BrokerConfig.is_secret(option) or self._encoder is None:
            return value
        try:
            self._encoder.decode(value)
        except InvalidConfigError:
            with contextlib.suppress(InvalidConfigError):  # ``reload`` reports it
                return self._encoder.encode(old.decode(value))
        return value

    def _check_alive(self, broker_id: int) -> None:
        """Raise unless the broker is alive, because an unknown broker without options is probably a typing error."""
        alive = live_ids(self._coordination)
        if broker_id not in alive:
            raise InvalidRequestError(
                f"there is no broker {broker_id}: the live brokers are {', '.join(map(str, alive))}"
            )

    def _check(
        self, name: str, present: Mapping[str, str], values: Mapping[str, str], removals: Collection[str]
    ) -> None:
        """Raise ``InvalidConfigError`` if a change of ``present`` is wrong by itself, or for this broker."""
        if not self.concerns_this(name):
            with_dynamic(self.file, values)
            return
        kept = {option: value for option, value in self._usable(name, present).items() if option not in removals}
        changed = {**kept, **values}
        with_dynamic(self.file, changed)  # also if another layer overrides it
        layers = (changed, self.for_this) if name == ALL_BROKERS else (self.for_all, changed)
        after = with_dynamic(self.file, {**layers[0], **layers[1]})
        check_threads(self.current, after)
        for check in self.checks:
            check(self.current, after)

    def _usable(self, name: str, stored: Mapping[str, str]) -> Mapping[str, str]:
        """Return the options that are valid here, because other tools and other brokers may write any option.

        Options of this broker must be valid by themselves, and together with those of all brokers.
        """
        usable = self._valid(self._decoded(name, stored), {})
        return usable if name == ALL_BROKERS else self._valid(usable, self.for_all)

    def _valid(self, values: Mapping[str, str], below: Mapping[str, str]) -> Mapping[str, str]:
        """Return the options that are valid over those of ``below``.

        Options may need each other, as a listener and its certificate do. They are valid together, or each with those
        before it.
        """
        try:
            with_dynamic(self.file, {**below, **values})
        except InvalidConfigError:
            valid: dict[str, str] = {}
        else:
            return values
        for option in sorted(values, key=lambda option: option.startswith("listener.name.")):
            try:
                with_dynamic(self.file, {**below, **valid, option: values[option]})
            except InvalidConfigError as error:
                _logger.error("the broker option %s is ignored, because it is invalid: %s", option, error.message)
            else:
                valid[option] = values[option]
        return valid

    def _decoded(self, name: str, stored: Mapping[str, str]) -> dict[str, str]:
        """Return options with their passwords decrypted, without those that are for one broker but set for all."""
        values = {}
        for option, value in stored.items():
            if name == ALL_BROKERS and is_per_broker(option):
                _logger.error("%s is set for all brokers, and ignored: it is an option of one broker", option)
                continue
            values[option] = value
            if is_per_broker(option) and BrokerConfig.is_secret(option):
                try:
                    values[option] = self._decoder.decode(value)
                except InvalidConfigError as error:
                    _logger.error("%s is ignored: %s", option, error.message)
                    del values[option]
        return values


def _is_broker_id(name: str) -> bool:
    """Return whether ``name`` is an id in a broker's own form. Another form, such as 01, would evade its checks."""
    return _ID.fullmatch(name) is not None and int(name) <= INT_MAX


def _list(value: object) -> str:
    return "" if value is None else str(value)


def _path(name: str) -> str:
    return paths.config_path(f"brokers/{int(name) if name else _DEFAULT_NODE}")

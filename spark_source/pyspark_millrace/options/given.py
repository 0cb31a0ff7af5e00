"""The options of a DataFrame as Spark passes them, looked up and checked one by one.

Names are not case-sensitive, as everywhere in Spark. What is wrong raises ``UsageError`` with the option, the value and
what would be accepted.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from millrace.config.secrets import shown
from millrace.errors import UsageError

_SECURITY: Final = ("sasl.", "ssl.", "security.")
"""How the settings of Kafka's clients begin that are about TLS and who one is."""

_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=StrEnum)


class GivenOptions:
    """The options that were given; readers name what they expected."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}

    def text(self, name: str) -> str | None:
        """An option as it was given."""
        return self._values.get(name.lower())

    def present(self, *names: str) -> dict[str, str]:
        """Those of some options that were given."""
        return {name: text for name in names if (text := self.text(name)) is not None}

    def flag(self, name: str, *, default: bool) -> bool:
        """``true`` or ``false``."""

        def parse(text: str) -> bool:
            return {"true": True, "false": False}[text.lower()]

        return self._parsed(name, parse, default, "true or false")

    def whole_number(self, name: str, *, minimum: int = 1, maximum: int = 2**63 - 1) -> int | None:
        """A number, of those that a ``BIGINT`` holds; none where it was not given."""

        def parse(text: str) -> int | None:
            if not text.isdecimal() or not minimum <= int(text) <= maximum:
                raise ValueError(text)
            return int(text)

        return self._parsed(name, parse, None, f"a whole number from {minimum} to {maximum}")

    def choice(self, name: str, default: _Choice) -> _Choice:
        """One of the values of an enumeration."""
        return self._parsed(
            name, lambda text: type(default)(text.lower()), default, "one of " + ", ".join(type(default))
        )

    def _parsed(self, name: str, parse: Callable[[str], _T], default: _T, form: str) -> _T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except (ValueError, KeyError):
            raise UsageError(f"{name}={text!r}: expected {form}") from None

    def client_settings(self, *without: str) -> dict[str, str]:
        """The ``kafka.*`` settings without their prefix, for the client; the client checks their values."""
        left_out = {f"kafka.{name}" for name in without}
        return {
            name.removeprefix("kafka."): value
            for name, value in self._values.items()
            if name.startswith("kafka.") and name not in left_out
        }

    def bootstrap_servers(self) -> str:
        """The brokers' addresses, with the prefix ``kafka.`` or without."""
        values = self.present("kafka.bootstrap.servers", "bootstrap.servers")
        servers = set(values.values())
        if not servers:
            raise UsageError("kafka.bootstrap.servers is required: the brokers as host:port[,host:port]")
        if len(servers) > 1:
            raise UsageError(f"kafka.bootstrap.servers and bootstrap.servers differ ({values}): give one")
        address = servers.pop().strip()
        for server in address.split(","):
            host, colon, port = server.strip().rpartition(":")
            if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
                raise UsageError(f"kafka.bootstrap.servers={address!r}: expected host:port[,host:port]")
        return address

    def refuse_unknown(
        self, supported: Sequence[str], not_supported: Mapping[str, str], decided: Mapping[str, str]
    ) -> None:
        """Raise for an option that is none.

        ``not_supported`` has the reasons of those that are refused, ``decided`` what decides client settings instead.
        """
        known = {name.lower() for name in supported}
        reasons = {name.lower(): reason for name, reason in not_supported.items()}
        for name, value in self._values.items():
            setting = name.removeprefix("kafka.")
            if name in known:
                continue
            if name in reasons:
                raise UsageError(f"option {name}={shown(name, value)} is not supported: {reasons[name]}")
            if name != setting and setting in decided:
                raise UsageError(
                    f"option {name}={shown(name, value)} is not supported: it is decided by {decided[setting]}"
                )
            if name != setting and setting.startswith(_SECURITY):
                raise UsageError(f"option {name} is not supported: brokers have neither TLS nor SASL; leave it out")
            if name == setting:
                raise UsageError(f"unknown option {name}={shown(name, value)}: {_suggestion(name, supported)}")


def _suggestion(name: str, supported: Sequence[str]) -> str:
    by_lower = {option.lower(): option for option in supported}
    near = [by_lower[match] for match in difflib.get_close_matches(name, by_lower, n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(supported)}"

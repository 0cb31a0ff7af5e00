"""Options of a DataFrame as Spark passes them, with checks per option.

Names are not case-sensitive, as everywhere in Spark. A wrong option raises ``UsageError``, which names the option, the
value and the accepted form.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from millrace.config.secrets import shown
from millrace.errors import UsageError

_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=StrEnum)


class GivenOptions:
    """Options that the user set. Each method names the accepted form in its error."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}

    def text(self, name: str) -> str | None:
        """Return the text of an option, None if it is not set."""
        return self._values.get(name.lower())

    def present(self, *names: str) -> dict[str, str]:
        """Return those of the named options that are set."""
        return {name: text for name in names if (text := self.text(name)) is not None}

    def flag(self, name: str, *, default: bool) -> bool:
        """Parse an option as ``true`` or ``false``."""

        def parse(text: str) -> bool:
            return {"true": True, "false": False}[text.lower()]

        return self._parsed(name, parse, default, "true or false")

    def whole_number(self, name: str, *, minimum: int = 1, maximum: int = 2**63 - 1) -> int | None:
        """Parse an option as a whole number within the range of ``BIGINT``; returns None if it is not set."""

        def parse(text: str) -> int | None:
            if not text.isdecimal() or not minimum <= int(text) <= maximum:
                raise ValueError(text)
            return int(text)

        return self._parsed(name, parse, None, f"a whole number from {minimum} to {maximum}")

    def choice(self, name: str, default: _Choice) -> _Choice:
        """Parse an option as a value of the default's enumeration."""
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
        """Return the ``kafka.*`` settings without the prefix. The client checks their values."""
        left_out = {f"kafka.{name}" for name in without}
        return {
            name.removeprefix("kafka."): value
            for name, value in self._values.items()
            if name.startswith("kafka.") and name not in left_out
        }

    def bootstrap_servers(self) -> str:
        """Return the addresses of the brokers, from the option with the prefix ``kafka.`` or without."""
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
        """Raise ``UsageError`` for an unknown or unsupported option.

        ``not_supported`` maps an option to the reason for its refusal. ``decided`` maps a client setting to the remedy,
        mostly the option that replaces it.
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
                raise UsageError(f"option {name}={shown(name, value)} is not supported: {decided[setting]}")
            if name == setting:
                raise UsageError(f"unknown option {name}={shown(name, value)}: {_suggestion(name, supported)}")


def _suggestion(name: str, supported: Sequence[str]) -> str:
    by_lower = {option.lower(): option for option in supported}
    near = [by_lower[match] for match in difflib.get_close_matches(name, by_lower, n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(supported)}"

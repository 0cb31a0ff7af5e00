"""References in options, to files and environment variables, for secrets.

The forms are those of Kafka's own configuration providers (KIP-297, KIP-421), which need no configuration here:

* ``${file:/run/secrets/kafka.properties:password}``: the property ``password`` of a properties file
* ``${directory:/run/secrets:password}``: the whole file ``password`` in a directory
* ``${env:KAFKA_PASSWORD}``: an environment variable

A reference is resolved only when a client is created, or when a broker reads its file and its command line. Options of
clients that are shown, logged or sent contain the reference. Options received from others are never resolved, such as
dynamic options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from millrace.config.base import read_properties
from millrace.config.secrets import REFERENCE
from millrace.errors import InvalidConfigError


def resolve_references(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace references in options. Raises ``InvalidConfigError`` for a reference without a target."""
    return {name: _resolved(name, value) if isinstance(value, str) else value for name, value in values.items()}


def _resolved(name: str, value: str) -> str:
    def look_up(found: re.Match[str]) -> str:
        try:
            return _PROVIDERS[found["provider"]](found["rest"])
        except (KeyError, OSError, UnicodeDecodeError, InvalidConfigError):
            # The original message is omitted, because it might quote a line of a file of secrets.
            raise InvalidConfigError(
                f"{name}={found.group()} cannot be resolved: expected ${{env:NAME}}, ${{file:PATH:PROPERTY}} or "
                "${directory:PATH:FILE}, on every machine whose clients or brokers have the option"
            ) from None

    return REFERENCE.sub(look_up, value)


def _in_environment(name: str) -> str:
    return os.environ[name]


def _in_properties(place: str) -> str:
    path, _, name = place.rpartition(":")
    return read_properties(Path(path))[name]


def _in_directory(place: str) -> str:
    path, _, name = place.rpartition(":")
    if not path or Path(name).name != name:  # the name must not lead out of the directory
        raise KeyError(place)
    return Path(path, name).read_text(encoding="utf-8").rstrip("\n")


_PROVIDERS: Final = {"env": _in_environment, "file": _in_properties, "directory": _in_directory}

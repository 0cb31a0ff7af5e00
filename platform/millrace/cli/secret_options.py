"""Refusal of secrets on the command line, which other users can see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millrace.config.secrets import holds_secret
from millrace.errors import UsageError

_REFERENCES: Final = "a reference (${env:NAME}, ${file:PATH:PROPERTY} or ${directory:PATH:FILE})"


def refuse_secrets(
    values: Mapping[str, str],
    option: str,
    *,
    is_secret: Callable[[str], bool],
    file: str | None,
) -> None:
    """Raise ``UsageError`` if a value given by ``option`` is a secret. The error has its name and the remedy.

    ``file`` describes the place for secrets.
    """
    for name, value in values.items():
        if is_secret(name) and holds_secret(name, value):
            raise refused(f"{option} {name}", file)


def is_client_secret(option: str) -> bool:
    """Return whether a client's option is secret, also as an option of Spark's sources and sinks (``kafka.``)."""
    from millrace.config.client import ConsumerConfig

    return ConsumerConfig.is_secret(option.removeprefix("kafka."))


def refused(what: str, file: str | None) -> UsageError:
    """Return the error of a secret that is on the command line."""
    ways = [*([file] if file else []), f"as {_REFERENCES}"]
    return UsageError(
        f"{what}: the value is a secret, and all users of this machine can see a command line: give it "
        + ", or ".join(ways)
    )

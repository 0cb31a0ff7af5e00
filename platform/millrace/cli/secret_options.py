"""Refusal of secrets on the command line, which other users can see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millrace.config.secrets import holds_secret
from millrace.errors import UsageError

REFERENCES: Final = "a reference (${env:NAME}, ${file:PATH:PROPERTY} or ${directory:PATH:FILE})"


def refuse_secrets(
    values: Mapping[str, str], option: str, *, is_secret: Callable[[str], bool], remedy: str, may_refer: bool = True
) -> None:
    """Raise ``UsageError`` if a value given by ``option`` is a secret. The error has its name and the remedy.

    ``may_refer`` accepts references. Code that resolves no references would take them as the secret.
    """
    for name, value in values.items():
        if value and is_secret(name) and (holds_secret(name, value) or not may_refer):
            raise refused(f"{option} {name}", f"{remedy}, or as {REFERENCES}" if may_refer else remedy)


def refused(what: str, remedy: str) -> UsageError:
    """Return the error of a secret that is on the command line."""
    return UsageError(
        f"{what}: the value is a secret, and all users of this machine can see a command line: give it {remedy}"
    )

"""SCRAM credentials of users as options, as ``kafka-configs`` has them.

An option is ``SCRAM-SHA-512=[iterations=8192,password=...]``. No error shows a password.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from millrace.cli.secret_options import refused
from millrace.clients.scram_credentials import UserScramCredentialDeletion, UserScramCredentialUpsertion
from millrace.config.references import resolve_references
from millrace.config.secrets import holds_secret
from millrace.errors import UsageError
from millrace.security.scram import ITERATIONS_MIN, MECHANISM_NUMBERS

_FORM: Final = "[iterations=8192,password=...], in which iterations may be left out"
_CREDENTIAL: Final = re.compile(r"(?:iterations\s*=\s*(-1|[0-9]{1,9})\s*,\s*)?password=(.+)", re.DOTALL)
_SEVERAL: Final = re.compile(r"\]\s*,\s*[\w.-]+\s*=|,\s*iterations\s*=\s*-?[0-9]+\s*$")
"""Ends of a password that are another option, or iterations behind the password."""


def refuse_scram_passwords(values: Mapping[str, str], option: str) -> None:
    """Raise ``UsageError`` if a password is on the command line, and no reference to one."""
    for name, value in values.items():
        if name in MECHANISM_NUMBERS and holds_secret(name, _parts(name, value)[1]):
            raise refused(f"{option} {name}", "with --add-file (`-`: the input)")


def scram_alterations(
    user: str, values: Mapping[str, str], delete: Collection[str]
) -> list[UserScramCredentialUpsertion | UserScramCredentialDeletion]:
    """Return the changes of a user's credentials, with references resolved. Raises ``UsageError``."""
    changes: list[UserScramCredentialUpsertion | UserScramCredentialDeletion] = []
    for name, value in values.items():
        iterations, password = _parts(name, value)
        changes.append(UserScramCredentialUpsertion(user, name, resolve_references({name: password})[name], iterations))
    changes.extend(UserScramCredentialDeletion(user, name) for name in dict.fromkeys(delete))
    return changes


def _parts(name: str, value: str) -> tuple[int, str]:
    """Return the iterations and the password of a credential. Raises ``UsageError``."""
    inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    found = _CREDENTIAL.fullmatch(inner)
    if found is None:
        raise UsageError(f"{name} is no SCRAM credential: expected {name}={_FORM}. The value is not shown")
    iterations, password = found.groups()
    if _SEVERAL.search(password):
        raise UsageError(
            f"{name}: the password ends with another option: give iterations before the password, and each credential "
            "with an --add or a line of its own"
        )
    return ITERATIONS_MIN if iterations in (None, "-1") else int(iterations), password

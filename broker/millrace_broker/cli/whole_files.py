"""Files that readers see whole, and with their mode from the beginning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millrace.config.properties import escaped_value
from millrace.errors import EnvironmentProblemError

PUBLIC_MODE: Final = 0o644
SECRET_MODE: Final = 0o600


def write_whole(path: Path, content: bytes, mode: int, *, replaces: bool = False) -> None:
    """Write a file that only ever has this mode and the whole content.

    ``replaces`` allows an earlier file of the name. Raises ``EnvironmentProblemError``.
    """
    target = path.with_name(f".{path.name}.new") if replaces else path
    try:
        if replaces:
            target.unlink(missing_ok=True)  # of a command that was killed
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            target.replace(path)
    except OSError as error:
        raise EnvironmentProblemError(f"{target} cannot be written: {error.strerror}") from error


def properties_text(options: Mapping[str, str]) -> str:
    """Return the lines of a properties file."""
    return "".join(f"{name}={escaped_value(value)}\n" for name, value in options.items())

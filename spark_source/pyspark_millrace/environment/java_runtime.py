"""Check for a suitable Java before Spark starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from millrace.errors import EnvironmentProblemError

JAVA_VERSION_MIN: Final = 17
"""Spark 4's minimum."""

_REMEDY: Final = (
    f"install a Java {JAVA_VERSION_MIN} or newer (apt install openjdk-17-jre-headless, brew install openjdk@17) "
    "and set JAVA_HOME to it"
)


def check_java() -> int:
    """Find the Java that Spark will use and return its major version.

    The search order is Spark's: ``JAVA_HOME``, then the path. Raises ``EnvironmentProblemError`` with the remedy if
    there is no Java, it does not start, or it is too old for Spark.
    """
    java = _java_command()
    version = _version_in_release_file(java) or _version_by_running(java)
    if version < JAVA_VERSION_MIN:
        raise EnvironmentProblemError(f"{java} is Java {version}, Spark needs {JAVA_VERSION_MIN}: {_REMEDY}")
    return version


def _java_command() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise EnvironmentProblemError(f"JAVA_HOME={home} has no bin/java: correct or unset it, or {_REMEDY}")
        return java
    found = shutil.which("java")
    if found is None:
        raise EnvironmentProblemError(f"no java command found, which Spark needs: {_REMEDY}")
    return Path(found)


def _version_in_release_file(java: Path) -> int | None:
    """Read the version from the JDK's release file beside bin/, which saves a start of 50 ms."""
    release = java.resolve().parent.parent / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return _major(text, r'JAVA_VERSION="([^"]+)"')


def _version_by_running(java: Path) -> int:
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblemError(f"{java} does not start ({error}): {_REMEDY}") from error
    version = _major(result.stderr + result.stdout, r'version "([^"]+)"')
    if result.returncode or version is None:
        raise EnvironmentProblemError(f"{java} -version answered {result.stderr.strip()!r}: {_REMEDY}")
    return version


def _major(text: str, pattern: str) -> int | None:
    """Return the major version: 17 for 17.0.15, 8 for 1.8.0_412."""
    if (match := re.search(pattern, text)) is None:
        return None
    if (numbers := re.match(r"(?:1\.)?(\d+)", match[1])) is None:
        return None
    return int(numbers[1])

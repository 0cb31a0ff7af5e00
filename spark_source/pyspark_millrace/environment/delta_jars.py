"""Delta's JARs, resolved once by Spark's resolver and cached for later sessions.

The coordinate is pinned, because the JARs must fit both Spark and the ``delta-spark`` package. Version 4.4.1 of that
package requires an artifact that cannot be resolved. The resolver runs with its own home directory. Otherwise a
``~/.m2`` with a module's metadata but without its JAR would break it, as it breaks ``--packages`` (docs/spark.md). JARs
that Spark already contains are left out.

Invariant: a directory of JARs gets its final name only when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from millrace.errors import EnvironmentProblemError

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"

_RESOLVE_SECONDS_MAX: Final = 600
_MANIFEST: Final = "manifest"


def cache_directory() -> Path:
    """Return millrace's cache directory: ``MILLRACE_CACHE``, or ``millrace`` in the user's cache directory."""
    if own := os.environ.get("MILLRACE_CACHE"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "millrace")


def delta_jars() -> list[Path]:
    """Return the JARs that Spark needs for Delta. The first call resolves them from Maven Central into the cache.

    ``MILLRACE_DELTA_JARS`` names a directory of JARs to use instead, for machines without access to a repository.
    Raises ``EnvironmentProblemError`` with the remedy if the JARs are not available.
    """
    if own := os.environ.get("MILLRACE_DELTA_JARS"):
        jars = sorted(Path(own).absolute().glob("*.jar"))
        if not any("delta-spark" in jar.name for jar in jars):
            raise EnvironmentProblemError(
                f"MILLRACE_DELTA_JARS={own} holds no delta-spark JAR: put {DELTA_PACKAGE} there"
            )
        return jars
    directory = cache_directory() / "jars" / DELTA_PACKAGE.replace(":", "-")
    jars = _complete(directory)
    if not jars:
        with _lock(directory.parent):
            jars = _complete(directory) or _resolve_into(directory)
    return jars


def _complete(directory: Path) -> list[Path]:
    """Return the JARs of a directory if all files of its manifest exist with their size; otherwise an empty list."""
    try:
        lines = (directory / _MANIFEST).read_text().splitlines()
        sizes = {name: int(size) for size, name in (line.split(" ", 1) for line in lines)}
        if all((directory / name).stat().st_size == size for name, size in sizes.items()):
            return [directory / name for name in sizes]
    except (OSError, ValueError):
        # Missing or damaged: resolve again.
        pass
    return []


def _resolve_into(directory: Path) -> list[Path]:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="resolving-") as scratch_name:
        scratch = Path(scratch_name)
        _run_resolver(scratch)
        staged = scratch / "staged"
        staged.mkdir()
        manifest = []
        for jar in _not_spark_s_own(sorted((scratch / "ivy" / "jars").glob("*.jar"))):
            shutil.move(jar, staged / jar.name)
            manifest.append(f"{(staged / jar.name).stat().st_size} {jar.name}\n")
        (staged / _MANIFEST).write_text("".join(manifest))
        shutil.rmtree(directory, ignore_errors=True)
        staged.rename(directory)
    jars = _complete(directory)
    if not jars:
        raise EnvironmentProblemError(f"Spark resolved no JARs for {DELTA_PACKAGE}; {_remedy()}")
    return jars


def _run_resolver(scratch: Path) -> None:
    """Let spark-submit resolve the package for an empty program."""
    (scratch / "home").mkdir()
    program = scratch / "nothing.py"
    program.write_text("")
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Duser.home={scratch / 'home'}".strip()
    # A gateway or submit arguments of the calling process do not apply to this program.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment = inherited | {"SPARK_SUBMIT_OPTS": options, "SPARK_HOME": str(spark_home())}
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--master", "local[1]", "--packages", DELTA_PACKAGE),
        *("--conf", f"spark.jars.ivy={scratch / 'ivy'}", "--conf", f"spark.pyspark.python={sys.executable}"),
        str(program),
    ]
    try:
        result = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_RESOLVE_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblemError(
            f"{DELTA_PACKAGE} was not resolved within {_RESOLVE_SECONDS_MAX} s: {_remedy()}"
        ) from None
    if result.returncode:
        log = cache_directory() / "resolving-delta.log"
        log.write_text(result.stdout)
        raise EnvironmentProblemError(
            f"cannot resolve Delta's JARs ({DELTA_PACKAGE}): {_reason(result.stdout)} (all is in {log}): {_remedy()}"
        )


def _remedy() -> str:
    return (
        "let this machine reach Maven Central (behind a mirror, set DEFAULT_ARTIFACT_REPOSITORY to its address; "
        "behind a proxy, SPARK_SUBMIT_OPTS to -Dhttps.proxyHost=... -Dhttps.proxyPort=...), or put the JARs of "
        f"{DELTA_PACKAGE} and its dependencies in a directory and set MILLRACE_DELTA_JARS to it"
    )


def _reason(output: str) -> str:
    """Return the line with the cause of the failure from Ivy's long output."""
    for pattern in (
        r"unresolved dependency: .*", r"download failed: .*", r".*Host \S+ not found.*", r".*Exception: .*",
    ):  # fmt: skip
        if (match := re.search(pattern, output)) is not None:
            return match[0].strip()
    return output.strip().splitlines()[-1] if output.strip() else "no output"


def _not_spark_s_own(jars: list[Path]) -> list[Path]:
    """Drop JARs that Spark contains too (Hadoop, Parquet, log4j: 75 of 87 MB), because two versions of one library
    conflict.
    """
    own = {_artifact(jar.name) for jar in (spark_home() / "jars").glob("*.jar")}
    # Ivy names a file <organisation>_<artifact>-<version>.jar; Spark names it <artifact>-<version>.jar.
    return [jar for jar in jars if _artifact(jar.name.split("_", 1)[1]) not in own]


def _artifact(name: str) -> str:
    return re.sub(r"-\d[\w.+-]*\.jar$", "", name)


def spark_home() -> Path:
    """Return the Spark of the ``pyspark`` package, or ``SPARK_HOME`` if it is set."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    import pyspark

    return Path(pyspark.__file__).parent


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Lock the resolution: one process resolves, and the others wait for its result."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / ".lock", "w")  # noqa: SIM115  the lock is held as long as the file is open
    except OSError as error:
        raise EnvironmentProblemError(
            f"cannot write Delta's JARs to {directory} ({error.strerror}): set MILLRACE_CACHE to another directory"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

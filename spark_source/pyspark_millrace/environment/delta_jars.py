"""Delta's JARs: resolved once by Spark's own resolver, then kept in a cache of ours for every later session.

The coordinate is pinned, because the JARs must fit both Spark and the ``delta-spark`` package (4.4.1 asks for an
artifact that cannot be resolved). The resolver runs with a home directory of ours, so that a ``~/.m2`` in which Maven
left a module's metadata without its JAR cannot break it, as it breaks ``--packages`` (docs/spark.md). JARs that Spark
brings itself are left out.

Invariant: a directory of JARs appears under its final name only when it is complete.
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
    """Where millrace keeps what it can get again: ``MILLRACE_CACHE``, or ``millrace`` in the user's cache directory."""
    if own := os.environ.get("MILLRACE_CACHE"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "millrace")


def delta_jars() -> list[Path]:
    """The JARs that Spark needs for Delta, from the cache; the first call ever resolves them from Maven Central.

    ``MILLRACE_DELTA_JARS`` names a directory of JARs to use as it is, for machines that reach no repository.

    Raises ``EnvironmentProblemError`` with the remedy when they cannot be had.
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
    """The JARs of a directory, if all that its manifest lists are there in their size."""
    try:
        lines = (directory / _MANIFEST).read_text().splitlines()
        sizes = {name: int(size) for size, name in (line.split(" ", 1) for line in lines)}
        if all((directory / name).stat().st_size == size for name, size in sizes.items()):
            return [directory / name for name in sizes]
    except (OSError, ValueError):
        # Not there yet, or damaged: resolved again.
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
    """Let spark-submit resolve the package for a program that does nothing."""
    (scratch / "home").mkdir()
    program = scratch / "nothing.py"
    program.write_text("")
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Duser.home={scratch / 'home'}".strip()
    # A gateway or submit arguments of the calling process are not this program's.
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
    """The line that says what failed, out of the hundreds that Ivy writes."""
    for pattern in (
        r"unresolved dependency: .*", r"download failed: .*", r".*Host \S+ not found.*", r".*Exception: .*",
    ):  # fmt: skip
        if (match := re.search(pattern, output)) is not None:
            return match[0].strip()
    return output.strip().splitlines()[-1] if output.strip() else "no output"


def _not_spark_s_own(jars: list[Path]) -> list[Path]:
    """Ivy copies what Spark has too (Hadoop, Parquet, log4j: 75 of 87 MB). Two versions of one library do harm."""
    own = {_artifact(jar.name) for jar in (spark_home() / "jars").glob("*.jar")}
    # Ivy names a file <organisation>_<artifact>-<version>.jar, Spark's are <artifact>-<version>.jar.
    return [jar for jar in jars if _artifact(jar.name.split("_", 1)[1]) not in own]


def _artifact(name: str) -> str:
    return re.sub(r"-\d[\w.+-]*\.jar$", "", name)


def spark_home() -> Path:
    """The Spark that the ``pyspark`` package brings (``SPARK_HOME`` when it is set)."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    import pyspark

    return Path(pyspark.__file__).parent


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """One process resolves, the others wait for what it found."""
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

"""Spark session that reads topics and writes Delta tables.

In plain Python ``session()`` starts Spark with all settings that it needs. In a program run by ``spark-submit`` the JVM
runs already, and the settings of its command line have priority. Then ``session()`` adds only missing settings. If
Delta is not on the class path, the error names the ``--packages`` to give.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from millrace.config.secrets import SECRET_PATTERN
from millrace.errors import EnvironmentProblemError, UsageError
from millrace.processors import processor_count
from pyspark_millrace.environment.checkpoint_files import CHECKPOINT_MANAGER, probe_rename
from pyspark_millrace.environment.delta_jars import DELTA_PACKAGE, delta_jars, spark_home
from pyspark_millrace.environment.error_display import show_errors_briefly
from pyspark_millrace.environment.java_runtime import check_java
from pyspark_millrace.environment.settings import BRIEF_ERRORS, MONITOR, check_names
from pyspark_millrace.source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
CHECKPOINT_MANAGER_SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"

COMMON_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # Python workers talk to the JVM over Unix sockets: 40 ms less per micro-batch, a fifth more rows per second.
    "spark.python.unix.domain.socket.enabled": "true",
    # Filters of batch reads are applied before rows enter the JVM.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Secret options are hidden in plans, event logs and the web interface, by their names or values.
    "spark.redaction.regex": SECRET_PATTERN,
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of every session; ``conf/spark.properties`` has the same ones for ``spark-submit``."""

DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
}

WORKER_DAEMON: Final = "pyspark_millrace.environment.worker_daemon"
"""Spark's daemon of Python workers, without a traceback in the log when Spark ends an idle worker."""

_LAUNCHER: Final = str(Path(__file__).with_name("worker_python"))
_LAUNCHED_PYTHON: Final = "MILLRACE_WORKER_PYTHON"
"""Variable that names the interpreter to the launcher."""

PROFILES: Final = ("default", "low-latency")


def session(
    app_name: str | None = None,
    *,
    profile: str = "default",
    master: str | None = None,
    delta: bool = True,
    checkpoint_root: str | Path | None = None,
    **conf: Any,
) -> SparkSession:
    """Create or get a Spark session that reads topics and writes Delta tables.

    ``profile="low-latency"`` also writes checkpoints by plain renames and without checksum files, which halves the time
    of a small micro-batch. It needs ``checkpoint_root``, the directory above the session's checkpoints, and a probe
    there must show that renames are atomic. Otherwise Spark's default checkpoint manager stays, and the log gives the
    reason.

    The default of ``master`` is the setting of spark-submit, or else ``local[*]``. Further settings have names with
    dots (``**{"spark.sql.shuffle.partitions": 4}``) or underscores (``spark_sql_shuffle_partitions=4``), and override
    all others. In plain Python they are passed to the new JVM, so driver memory and similar settings take effect.

    Raises ``EnvironmentProblemError`` if Java or Delta's JARs are missing, and ``UsageError`` for an unknown profile or
    setting.
    """
    if profile not in PROFILES:
        raise UsageError(f"profile={profile!r}: expected one of {', '.join(PROFILES)}")
    check_java()
    own = {
        name if "." in name else name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in conf.items()
    }
    if app_name is not None:
        own["spark.app.name"] = app_name
    if master is not None:
        own["spark.master"] = master
    is_running = _jvm_is_running()
    in_force = _settings_of_running_jvm() if is_running else {}
    given = in_force | own
    check_names(given)
    local = given.get("spark.master", "local[*]").startswith("local")
    defaults = default_settings(local=local, delta=delta)
    if profile == "low-latency":
        defaults |= _checkpoint_settings(checkpoint_root)
    settings = merge_settings(defaults, given)
    if not is_running:
        if delta:
            settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), *map(str, delta_jars())]))
        _prepare_environment(local=local)
        if local and "spark.pyspark.python" not in settings:
            os.environ.setdefault("PYSPARK_PYTHON", worker_python())
    # Workers need the same Python with the same packages; Spark's default is the python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    if is_running and delta:
        _check_delta_classes()
    created = _create({name: value for name, value in settings.items() if value != in_force.get(name)})
    if profile == "low-latency" and CHECKPOINT_MANAGER_SETTING in defaults:
        write_no_checksums(created)
    _register_source(created)
    if delta:
        _check_delta_extension(created)
    _monitor(created)
    if created.conf.get(BRIEF_ERRORS, "true") != "false":
        show_errors_briefly()
    return created


def default_settings(*, local: bool, delta: bool) -> dict[str, str]:
    """Return the default settings of a session; ``local`` means that Spark runs in one process."""
    settings = dict(COMMON_SETTINGS)
    if local:
        settings |= {
            "spark.master": "local[*]",
            # Spark's default of 200 suits clusters: here each partition would be a task of a few milliseconds.
            "spark.sql.shuffle.partitions": str(max(2, processor_count())),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.python.daemon.module": WORKER_DAEMON,
        }
    if delta:
        settings |= DELTA_SETTINGS
        if local:
            settings["spark.databricks.delta.snapshotPartitions"] = "2"
    return settings


def merge_settings(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults overridden by the given settings. Extensions of both are combined."""
    merged = {**defaults, **given}
    extensions = [
        *given.get("spark.sql.extensions", "").split(","),
        *defaults.get("spark.sql.extensions", "").split(","),
    ]
    if unique := list(dict.fromkeys(filter(None, (extension.strip() for extension in extensions)))):
        merged["spark.sql.extensions"] = ",".join(unique)
    return merged


def spark_submit_command(
    script: str | Path,
    *arguments: str,
    conf: Mapping[str, str] | None = None,
    delta: bool = True,
    py_files: Sequence[str | Path] = (),
) -> list[str]:
    """Return the command that runs ``script`` with the spark-submit of this environment and the cached Delta JARs.

    It equals ``spark-submit --packages io.delta:... --properties-file conf/spark.properties script``, but asks no
    repository each time. ``conf`` overrides these settings, also ``spark.master`` and ``spark.pyspark.python``.
    ``py_files`` are sent to executors without millrace (``package.build_package``). Raises ``EnvironmentProblemError``
    like ``session``.
    """
    check_java()
    given = conf or {}
    local = given.get("spark.master", "local[*]").startswith("local")
    settings = merge_settings(default_settings(local=local, delta=delta), given)
    python = settings.setdefault("spark.pyspark.python", worker_python() if local else sys.executable)
    # The JVM searches for Python sources with the interpreter of this variable, whatever its settings are.
    command = ["env", f"PYSPARK_PYTHON={python}"]
    if python == _LAUNCHER:
        command.append(f"{_LAUNCHED_PYTHON}={sys.executable}")
    command.append(str(spark_home() / "bin" / "spark-submit"))
    if delta:
        command += ["--jars", ",".join(map(str, delta_jars()))]
    if py_files:
        command += ["--py-files", ",".join(map(str, py_files))]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    return [*command, str(script), *arguments]


def _checkpoint_settings(checkpoint_root: str | Path | None) -> dict[str, str]:
    if checkpoint_root is None:
        _log.warning(
            "profile low-latency: no checkpoint_root given, so checkpoints are written by Spark's default manager"
        )
        return {}
    probe = probe_rename(checkpoint_root)
    if not probe.safe:
        _log.warning("profile low-latency: checkpoints are written by Spark's default manager: %s", probe.reason)
        return {}
    _log.info("profile low-latency: checkpoints are written by renames: %s", probe.reason)
    return {CHECKPOINT_MANAGER_SETTING: CHECKPOINT_MANAGER}


def _jvm_is_running() -> bool:
    """Return whether a JVM runs already, from an earlier session or under spark-submit."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _settings_of_running_jvm() -> dict[str, str]:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    context = SparkContext._active_spark_context
    return dict(context.getConf().getAll() if context is not None else SparkConf().getAll())


def worker_python() -> str:
    """Return the Python for workers of a Spark that this process starts: the same Python through a faster launcher."""
    import pyspark

    if os.name != "posix" or spark_home() != Path(pyspark.__file__).parent:
        return sys.executable
    os.environ[_LAUNCHED_PYTHON] = sys.executable
    return _LAUNCHER


def _prepare_environment(*, local: bool) -> None:
    os.environ.setdefault("SPARK_HOME", str(spark_home()))
    if local:
        # Binds the web interface to this address only.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def write_no_checksums(created: SparkSession) -> None:
    """Write local files of this process without a checksum file beside each, which is Hadoop's default.

    Without Hadoop's native library every written file starts a process (``chmod``): six in a micro-batch for
    checkpoints, and three without checksum files. Existing checksums are still verified. A file that replaces one with
    checksums removes them.
    """
    files = created._jvm.org.apache.hadoop.fs.FileSystem
    files.getLocal(created._jsc.hadoopConfiguration()).setWriteChecksum(False)


def _create(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _monitor(created: SparkSession) -> None:
    """Install the monitor, with the outlets of the session's configuration."""
    given = {
        name: created.conf.get(MONITOR + name, None) for name in ("enabled", "port", "host", "textfile", "pushgateway")
    }
    if given.pop("enabled") == "false":
        return
    from pyspark_millrace.monitor import monitor

    outlets: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if (port := outlets.get("port")) is not None:
        if not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"spark.millrace.monitor.port={port!r}: expected a port, or 0 for any")
        outlets["port"] = int(port)
    monitor(created, **outlets, security=_monitor_security(created))


def _monitor_security(created: SparkSession) -> dict[str, str]:
    """Return the options for the security of the monitor's address."""
    found = {
        name.removeprefix(MONITOR): value for name, value in created.conf.getAll.items() if name.startswith(MONITOR)
    }
    return {name: value for name, value in found.items() if name.startswith(("security.", "ssl.", "sasl."))}


def _register_source(created: SparkSession) -> None:
    """Register ``format("millrace")`` if Spark's own search would not find it.

    The search runs in the interpreter that the JVM's environment names, or else in the python3 on its path. Under
    spark-submit this may be another interpreter, because the search ignores ``spark.pyspark.python`` and
    ``--py-files``.
    """
    # The zip file that this module was imported from, if any.
    archive = next((parent.absolute() for parent in Path(__file__).parents if parent.is_file()), None)
    same_python = created._jvm.System.getenv("PYSPARK_PYTHON") == os.environ["PYSPARK_PYTHON"]
    if (same_python and archive is None) or created in _registered:
        return
    with _python_path(created.sparkContext.environment, archive):
        created.dataSource.register(DefaultSource)
    _registered.add(created)


@contextmanager
def _python_path(environment: dict[str, str], archive: Path | None) -> Iterator[None]:
    """Add the archive to the environment of a registration within the block.

    Spark's process that plans a stream does not find ``--py-files`` by itself.
    """
    before = environment.get("PYTHONPATH")
    if archive is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(archive), before)))
    try:
        yield
    finally:
        environment.pop("PYTHONPATH", None)
        if before is not None:
            environment["PYTHONPATH"] = before


_registered: Final[WeakSet[SparkSession]] = WeakSet()


def _check_delta_classes() -> None:
    """Check that a running JVM has Delta's classes, because a session without them fails at its first table."""
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    try:
        jvm.Thread.currentThread().getContextClassLoader().loadClass(DELTA_EXTENSION)
    except Exception as error:
        raise EnvironmentProblemError(f"Delta's JARs are not on Spark's class path: {_delta_remedy()}") from error


def _delta_remedy() -> str:
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return (
            "this program's JVM was started for a session without Delta, and it outlives that session: "
            "create the program's first session with session(delta=True)"
        )
    return (
        f"run spark-submit with --packages {DELTA_PACKAGE} (when it cannot resolve a module that ~/.m2 knows, set "
        "SPARK_SUBMIT_OPTS=-Duser.home=<an empty directory>)"
    )


def _check_delta_extension(created: SparkSession) -> None:
    """Check that a running session has Delta's extension, because Spark itself complains only at the first table."""
    extensions = created.conf.get("spark.sql.extensions", "") or ""
    if not re.search(rf"\b{re.escape(DELTA_EXTENSION)}\b", extensions):
        raise EnvironmentProblemError(
            "a Spark session without Delta is running already: stop it before session(), or call session(delta=False)"
        )

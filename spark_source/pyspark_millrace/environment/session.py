"""A ready Spark session: Delta, UTC, the settings that Python sources want, and a clear word when Java or JARs lack.

In plain Python ``session()`` starts Spark with everything it needs. In a program run by ``spark-submit`` the JVM is
there already and what was said on its command line stands: ``session()`` adds only what is missing, and says which
``--packages`` to give when Delta is not on the class path.
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
from pyspark_millrace.environment.checkpoint_files import CHECKPOINT_MANAGER, probe_rename
from pyspark_millrace.environment.delta_jars import DELTA_PACKAGE, delta_jars, spark_home
from pyspark_millrace.environment.error_display import show_errors_briefly
from pyspark_millrace.environment.java_runtime import check_java
from pyspark_millrace.source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
CHECKPOINT_MANAGER_SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"

COMMON_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # Python workers speak to the JVM over Unix sockets: 40 ms less for each micro-batch, a fifth more rows per second.
    "spark.python.unix.domain.socket.enabled": "true",
    # Filters of batch reads are applied before rows cross into the JVM.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Options whose names or values say that they are secrets are hidden in plans, event logs and the web interface.
    "spark.redaction.regex": SECRET_PATTERN,
    "spark.ui.showConsoleProgress": "false",
}
"""What every session of ours has; ``conf/spark.properties`` says the same to ``spark-submit``."""

DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
}

WORKER_DAEMON: Final = "pyspark_millrace.environment.worker_daemon"
"""Spark's own daemon of Python workers, but no traceback in the log whenever Spark ends an idle one."""

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
    """Get a Spark session that reads topics and writes Delta tables.

    ``profile="low-latency"`` also lets checkpoints be written by plain renames and without checksum files, which halves
    the time of a small micro-batch; for that ``checkpoint_root`` must name the directory that the session's checkpoints
    lie under, and a trial there must show that renames are atomic (otherwise Spark's own manager stays, and the log
    says why).

    ``master`` is by default what spark-submit says, else ``local[*]``. Further settings are given with dots
    (``**{"spark.sql.shuffle.partitions": 4}``) or underscores (``spark_sql_shuffle_partitions=4``) and win over all
    others. In plain Python these are passed to the JVM that is started, with driver memory and the like among them.

    Raises ``EnvironmentProblemError`` when Java or Delta's JARs lack, and ``UsageError`` for an unknown profile.
    """
    if profile not in PROFILES:
        raise UsageError(f"profile={profile!r}: expected one of {', '.join(PROFILES)}")
    check_java()
    own = {_setting_name(name): _setting_value(value) for name, value in conf.items()}
    if app_name is not None:
        own["spark.app.name"] = app_name
    if master is not None:
        own["spark.master"] = master
    is_running = _jvm_is_running()
    in_force = _settings_of_running_jvm() if is_running else {}
    given = in_force | own
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
    # Workers must be of the same Python with the same packages; Spark's own default is whatever python3 is on the path.
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
    if created.conf.get("spark.millrace.errors.brief", "true") != "false":
        show_errors_briefly()
    return created


def default_settings(*, local: bool, delta: bool) -> dict[str, str]:
    """What a session has where nothing else is said; ``local`` for a Spark that runs in one process."""
    settings = dict(COMMON_SETTINGS)
    if local:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
        settings |= {
            "spark.master": "local[*]",
            # Spark's own default of 200 is for clusters: here each would be a task of a few milliseconds.
            "spark.sql.shuffle.partitions": str(max(2, cores)),
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
    """Defaults with what was given over them; extensions are added up, for one does not replace another."""
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
    """The command that runs ``script`` by the spark-submit of this environment, with Delta from the cache.

    The same as ``spark-submit --packages io.delta:... --properties-file conf/spark.properties script``, without
    asking a repository every time. ``conf`` wins over what is set here, ``spark.master`` and ``spark.pyspark.python``
    among it; ``py_files`` go to executors that have no millrace (``package.build_package``).
    Raises ``EnvironmentProblemError`` like ``session``.
    """
    check_java()
    given = conf or {}
    local = given.get("spark.master", "local[*]").startswith("local")
    settings = merge_settings(default_settings(local=local, delta=delta), given)
    python = settings.setdefault("spark.pyspark.python", sys.executable)
    # The JVM looks for Python sources with the interpreter that this variable names, whatever its settings say.
    command = ["env", f"PYSPARK_PYTHON={python}", str(spark_home() / "bin" / "spark-submit")]
    if delta:
        command += ["--jars", ",".join(map(str, delta_jars()))]
    if py_files:
        command += ["--py-files", ",".join(map(str, py_files))]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    return [*command, str(script), *arguments]


def _setting_name(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


def _setting_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    """Whether there is a JVM already: started by an earlier session, or this program runs under spark-submit."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _settings_of_running_jvm() -> dict[str, str]:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    context = SparkContext._active_spark_context
    return dict(context.getConf().getAll() if context is not None else SparkConf().getAll())


def worker_python() -> str:
    """The Python for workers of a Spark that this process is about to start: this one, but sooner ready."""
    import pyspark

    if os.name != "posix" or spark_home() != Path(pyspark.__file__).parent:
        return sys.executable
    os.environ["MILLRACE_WORKER_PYTHON"] = sys.executable
    return str(Path(__file__).with_name("worker_python"))


def _prepare_environment(*, local: bool) -> None:
    os.environ.setdefault("SPARK_HOME", str(spark_home()))
    if local:
        # The web interface binds where this says, and nowhere else.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def write_no_checksums(created: SparkSession) -> None:
    """Have this process write local files without a file of checksums beside each, as Hadoop does by default.

    Without Hadoop's native library a process is started (``chmod``) for every file that is written, for checkpoints six
    in a micro-batch: so three. Files that have checksums are still checked by them, and what is written anew in the
    place of one takes its old checksums away.
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
    """Install the monitor, with the outlets that the session's configuration names."""
    given = {
        name: created.conf.get(f"spark.millrace.monitor.{name}", None)
        for name in ("enabled", "port", "host", "textfile", "pushgateway")
    }
    if given.pop("enabled") == "false":
        return
    from pyspark_millrace.monitor import monitor

    outlets: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if (port := outlets.get("port")) is not None:
        if not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"spark.millrace.monitor.port={port!r}: expected a port, or 0 for any")
        outlets["port"] = int(port)
    monitor(created, **outlets)


def _register_source(created: SparkSession) -> None:
    """Make ``format("millrace")`` known where Spark's own search would not find it.

    That search is run by the interpreter which the JVM's environment names, else by whatever python3 is on its path.
    Under spark-submit this need not be ours: the search knows nothing of ``spark.pyspark.python`` and ``--py-files``.
    """
    archive = _archive_of(Path(__file__))
    same_python = created._jvm.System.getenv("PYSPARK_PYTHON") == os.environ["PYSPARK_PYTHON"]
    if (same_python and archive is None) or created in _registered:
        return
    with _python_path(created.sparkContext.environment, archive):
        created.dataSource.register(DefaultSource)
    _registered.add(created)


def _archive_of(module: Path) -> Path | None:
    """The zip file that a module was imported from, if it was."""
    return next((parent.absolute() for parent in module.parents if parent.is_file()), None)


@contextmanager
def _python_path(environment: dict[str, str], archive: Path | None) -> Iterator[None]:
    """Give what is registered here an environment in which the archive is found.

    Spark's process that plans a stream is the one that looks for ``--py-files`` where there are none.
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
    """A JVM that runs already must have Delta's classes; a session made without them would fail at its first table."""
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    try:
        jvm.Thread.currentThread().getContextClassLoader().loadClass(DELTA_EXTENSION)
    except Exception as error:
        raise EnvironmentProblemError(f"Delta's JARs are not on Spark's class path: {_delta_remedy()}") from error


def _delta_remedy() -> str:
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return (
            "this program's JVM was started for a session without Delta, and stopping that does not end it: "
            "make the program's first session with session(delta=True)"
        )
    return (
        f"run spark-submit with --packages {DELTA_PACKAGE} (when it cannot resolve a module that ~/.m2 knows, set "
        "SPARK_SUBMIT_OPTS=-Duser.home=<an empty directory>)"
    )


def _check_delta_extension(created: SparkSession) -> None:
    """A session that runs already must have Delta's extension; Spark itself only complains when a table is used."""
    extensions = created.conf.get("spark.sql.extensions", "") or ""
    if not re.search(rf"\b{re.escape(DELTA_EXTENSION)}\b", extensions):
        raise EnvironmentProblemError(
            "a Spark session without Delta is running already: stop it before session(), or call session(delta=False)"
        )

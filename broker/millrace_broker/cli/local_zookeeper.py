"""A ZooKeeper of one server on loopback, for development: from the jars that come with PySpark, or others.

It keeps its data in a directory, and nobody but this host reaches it. A cluster that matters has an ensemble of three.

Invariant: the server ends once nobody holds the pipe any more that it was started with. So it ends with this process,
whatever ends that, but not before those that were given ``lifeline`` as well: brokers want to sign off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from millrace.errors import EnvironmentProblemError

JARS_VARIABLE: Final = "MILLRACE_ZOOKEEPER_JARS"
"""Directory with ZooKeeper's jars and those that it needs, instead of PySpark's."""

_NAMES: Final = (
    "zookeeper-",
    "slf4j-api-",
    "log4j-api-",
    "log4j-core-",
    "log4j-slf4j2-impl-",
    "netty-",
    "metrics-core-",
    "snappy-java-",
    "audience-annotations-",
    "commons-io-",
    "commons-cli-",
    "jline-2",
)
_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_PORTS: Final = range(20_000, 32_000)
"""Below those that systems give to connections."""
_START_S: Final = 60.0
_STOP_S: Final = 10.0
# The JVM looks at no pipe: a shell does it, and ends the JVM when nobody holds the other end.
_UNTIL_ALONE: Final = """exec 3<&0
"$@" </dev/null 3<&- & server=$!
{ read -r nothing <&3; kill $server; } & guard=$!
wait $server
kill $guard
"""
_LOG: Final = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def find_jars() -> list[Path]:
    """ZooKeeper's jars and those that it needs. Raises ``EnvironmentProblemError``."""
    named = os.environ.get(JARS_VARIABLE)
    if named:
        jars = sorted(Path(named).glob("*.jar"))
    else:
        spec = importlib.util.find_spec("pyspark")
        folder = Path(spec.origin).parent / "jars" if spec is not None and spec.origin else Path()
        jars = sorted(jar for jar in folder.glob("*.jar") if jar.name.startswith(_NAMES))
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise EnvironmentProblemError(
            "ZooKeeper's jars come with PySpark, which is not installed: pip install 'millrace[spark]', or name a "
            f"directory with them in {JARS_VARIABLE}"
        )
    return jars


class LocalZooKeeper:
    """A server in a JVM; ``with`` starts it and ends it. ``address`` is what brokers are given."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        self._directory: Final = directory
        self._port = port or _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def lifeline(self) -> int:
        """File descriptor that keeps the server running for as long as some process has it open."""
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it answers. Raises ``EnvironmentProblemError``."""
        java = shutil.which("java")
        if java is None:
            raise EnvironmentProblemError("ZooKeeper needs Java: install a JRE (Debian: apt install default-jre)")
        classes = ":".join([str(self._directory), *map(str, find_jars())])
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "tickTime": "500",
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
            "dataDir": str(self._directory / "data"),
            "clientPort": str(self._port),
            "clientPortAddress": "127.0.0.1",
        }
        conf = self._directory / "zoo.cfg"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self._directory / "log4j2.properties").write_text(_LOG)
        command = [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes, _MAIN, str(conf)]
        with self._log.open("ab") as log:
            # A group of its own: Ctrl-C is for us, who end it when the brokers have ended.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _UNTIL_ALONE, "sh", *command],
                stdout=log,
                stderr=log,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not self._is_well():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EnvironmentProblemError(f"ZooKeeper does not start: {self._log} says why")
            time.sleep(0.05)

    @property
    def _log(self) -> Path:
        return self._directory / "zookeeper.log"

    def _is_well(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False

    def stop(self) -> None:
        """End it; what was answered is on the disk."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:  # or somebody else has the pipe still
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _free_port() -> int:
    """A port that no connection is given before the server has it."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.choice(_PORTS)))
            return int(probe.getsockname()[1])

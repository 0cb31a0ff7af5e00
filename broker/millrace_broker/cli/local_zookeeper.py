"""Single ZooKeeper server on loopback for development, from PySpark's jars or others.

The server keeps its data in a directory and accepts only connections from this host. A production cluster needs an
ensemble of three servers.

Invariants

- A server with a ``login_config`` carries out no request of a connection that has not authenticated by SASL, and its
  data is readable for its owner alone. The secret of the brokers is on no command line.
- The server ends when no process holds the pipe it was started with. It therefore ends with this process, however that
  ends. It does not end before the processes that inherited ``lifeline``, because brokers must deregister first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from millrace.errors import EnvironmentProblemError

JARS_VARIABLE: Final = "MILLRACE_ZOOKEEPER_JARS"
"""Environment variable with a directory of ZooKeeper's jars and their dependencies, instead of PySpark's."""

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
"""Ports below the usual ephemeral range."""
_AUTHENTICATION: Final = {
    "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    "enforce.auth.enabled": "true",
    "enforce.auth.schemes": "sasl",
}
"""Settings of a server that demands SASL of each connection. It still answers ``ruok`` without."""
_VERSION: Final = re.compile(r"zookeeper-(\d+)\.(\d+).*\.jar")
_ENFORCES: Final = (3, 7)
"""First version of ZooKeeper with ``enforce.auth.enabled``. Earlier ones ignore it."""
_OWNER_ONLY: Final = 0o700
_START_S: Final = 60.0
_STOP_S: Final = 10.0
# The JVM does not watch the pipe. A shell watches it, and ends the JVM when no process holds the other end.
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
    """Return ZooKeeper's jars and their dependencies. Raises ``EnvironmentProblemError``."""
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
    """ZooKeeper server in a JVM, started and stopped by ``with``. Brokers connect to ``address``."""

    def __init__(self, directory: Path, login_config: Path | None = None) -> None:
        """Prepare a server with its data in ``directory``.

        ``login_config`` is a JAAS file with the section ``Server``: its users, as which all connections must
        authenticate.
        """
        self._directory: Final = directory
        self._login_config: Final = login_config
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def lifeline(self) -> int:
        """File descriptor that keeps the server running as long as any process has it open."""
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    @property
    def address(self) -> str:
        """Address as ``host:port``."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server, and wait until it answers. Raises ``EnvironmentProblemError``."""
        java = shutil.which("java")
        if java is None:
            raise EnvironmentProblemError("ZooKeeper needs Java: install a JRE (Debian: apt install default-jre)")
        jars = find_jars()
        if self._login_config is not None:
            _check_enforcement(jars)
        classes = ":".join([str(self._directory), *map(str, jars)])
        command = [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if self._login_config is not None:
            command.append(f"-Djava.security.auth.login.config={self._login_config}")
        command += ["-cp", classes, _MAIN, str(self._write_settings())]
        with self._log.open("ab") as log:
            # A session of its own keeps Ctrl-C from the server, which is stopped after the brokers.
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
                raise EnvironmentProblemError(f"ZooKeeper does not start: see {self._log}")
            time.sleep(0.05)

    def _write_settings(self) -> Path:
        """Write the files of the server, and return the path of its settings."""
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
        if self._login_config is not None:
            settings |= _AUTHENTICATION
            self._directory.chmod(_OWNER_ONLY)  # the data has the credentials of users
        conf = self._directory / "zoo.cfg"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self._directory / "log4j2.properties").write_text(_LOG)
        return conf

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
        """Stop the server. All acknowledged writes are on disk."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:  # or another process still holds the pipe
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


def _check_enforcement(jars: Sequence[Path]) -> None:
    """Raise ``EnvironmentProblemError`` for a ZooKeeper that would ignore ``enforce.auth.enabled``."""
    for jar in jars:
        version = _VERSION.fullmatch(jar.name)
        if version is not None and (int(version[1]), int(version[2])) < _ENFORCES:
            raise EnvironmentProblemError(
                f"{jar.name} cannot demand authentication of its clients: name a directory with ZooKeeper "
                f"{'.'.join(map(str, _ENFORCES))} or later in {JARS_VARIABLE}, or unset it to use PySpark's"
            )


def _free_port() -> int:
    """Return a port outside the ephemeral range, which no connection can take before the server binds it."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.choice(_PORTS)))
            return int(probe.getsockname()[1])

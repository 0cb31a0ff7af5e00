"""A standalone Spark cluster on loopback, without millrace in its environment."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark

from ..jvm import short_lived_options
from .waiting import STALL_S, eventually, work_of

SPARK_HOME = Path(pyspark.__file__).parent


def clean_environment(directory):
    """Create a virtual environment with all installed packages except millrace, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    made = Path(directory) / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # The present environment may have more than a new one: pip's files exist already or are not needed.
        if "millrace" not in entry.name and not (made / entry.name).exists():
            (made / entry.name).symlink_to(entry)
    return Path(directory) / "bin" / "python"


class Daemon:
    """A master or a worker. Its log names its address."""

    def __init__(self, directory, name, host, arguments, ready):
        self._log = directory / f"{name}.log"
        # The process gets nothing of this environment: no PYTHONPATH, no PYSPARK_PYTHON.
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, "SPARK_HOME": str(SPARK_HOME)}
        environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": host}
        environment["SPARK_DAEMON_JAVA_OPTS"] = short_lived_options()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]],
                env=environment,
                cwd=directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._ready = ready

    def address(self):
        found = eventually(
            lambda: re.search(self._ready, self.log) or self.process.poll() is not None,
            self._log.name,
            progress=lambda: (len(self.log), work_of(self.process.pid)),
        )
        assert found is not True, self.log
        return found[1] if found.groups() else found[0]

    @property
    def log(self):
        return self._log.read_text()

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait(STALL_S)


class Cluster:
    """A master and two workers of one core each. Spark counts their two loopback addresses as two hosts."""

    def __init__(self, directory):
        self.directory = directory
        self._daemons = [
            Daemon(
                directory,
                "master",
                "127.0.0.1",
                ["master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
                r"Starting Spark master at (\S+)",
            )
        ]
        self.master = self._daemons[0].address()
        self.workers = []
        for name, host in (("first", "127.0.0.1"), ("second", "127.0.0.2")):
            self.add_worker(name, host)
        for worker in self.workers:
            worker.address()

    def add_worker(self, name, host):
        arguments = ["worker.Worker", "--host", host, "--port", "0", "--webui-port", "0", "--cores", "1"]
        arguments += ["--memory", "1g", "--work-dir", str(self.directory / name), self.master]
        self.workers.append(Daemon(self.directory, name, host, arguments, "Successfully registered with master"))
        self._daemons.append(self.workers[-1])

    def logs(self):
        """Return the logs of master, workers and executors."""
        executors = self.directory.glob("*/app-*/*/std*")
        return "\n".join([daemon.log for daemon in self._daemons] + [path.read_text() for path in executors])

    def close(self):
        for daemon in reversed(self._daemons):
            daemon.kill()

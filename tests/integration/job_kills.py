"""A broker and a Spark job, each a process that a test may kill at any moment and start again."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pyspark_millrace import spark_submit_command

MILLRACE = Path(sys.executable).with_name("millrace")
VICTIMS = ("driver", "worker", "broker")
DEADLINE_S = 180


def wait_for(what, condition):
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        threading.Event().wait(0.05)
    return found


class Broker:
    """``millrace broker``, always under the same address."""

    def __init__(self, directory):
        self._directory = directory
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        command = [MILLRACE, "broker", "--data-dir", self._directory / "data", "--listen", self.address]
        with (self._directory / "broker.stderr").open("a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.process.stdout.readline()
        assert "listening on" in line, (self._directory / "broker.stderr").read_text()
        self.address = line.rpartition(" ")[2].strip()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()


class Job:
    """A script of ``jobs/`` under spark-submit, with tasks that are tried again."""

    def __init__(self, script, log, arguments, *, delta=True):
        command = spark_submit_command(script, *map(str, arguments), delta=delta)
        command = [part.replace("spark.master=local[*]", "spark.master=local[2,8]") for part in command]
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd="/", stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def output(self):
        return self._log.read_text()

    @property
    def batches(self):
        return len(re.findall(r"^batch \d+: ", self.output, re.MULTILINE))

    @property
    def is_running(self):
        return self.process.poll() is None

    def workers(self):
        """The processes in which its tasks run Python: forked by Spark's daemon, in the job's session."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes()
                parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[1:4]
            except (OSError, ValueError):
                continue
            if int(session) == self.process.pid and b"worker_daemon\0pyspark.worker\0" in command:
                found[int(entry.name)] = int(parent)
        return [worker for worker, parent in found.items() if parent in found]

    def kill(self):
        if self.is_running:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


def kill_one(victim, job, broker, chance):
    """Kill the driver, the processes of its tasks, or the broker, which is back after a moment."""
    if victim == "driver":
        job.kill()
    elif victim == "broker":
        broker.kill()
        threading.Event().wait(chance.uniform(0, 1.5))
        broker.start()
    else:
        for worker in job.workers():
            os.kill(worker, signal.SIGKILL)

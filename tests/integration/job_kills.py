"""A broker and a Spark job as processes that tests kill."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from millrace.clients import Admin, Consumer
from pyspark_millrace import spark_submit_command

from ..jvm import short_lived_options
from .waiting import STALL_S, eventually, exit_code, pause, work_of

MILLRACE = Path(sys.executable).with_name("millrace")
VICTIMS = ("driver", "executor", "worker", "broker")
CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": short_lived_options(),
    "spark.task.maxFailures": "8",
    "spark.sql.streaming.minBatchesToRetain": "10000",
}
"""Options for executors in processes of their own, task retries, and a checkpoint for a complete audit."""


class Broker:
    """``millrace broker``, always at the same address."""

    def __init__(self, directory):
        self._directory = directory
        self.data = directory / "data"
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        command = [MILLRACE, "broker", "--data-dir", self.data, "--listen", self.address]
        with (self._directory / "broker.stderr").open("a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.process.stdout.readline()
        assert "listening on" in line, (self._directory / "broker.stderr").read_text()
        self.address = line.rpartition(" ")[2].strip()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STALL_S)
        self.process.stdout.close()


@contextlib.contextmanager
def running_broker(directory):
    """Return a ``Broker`` that is killed at the end."""
    broker = Broker(directory)
    try:
        yield broker
    finally:
        broker.kill()


class Job:
    """A script of ``jobs/`` under spark-submit, with two executors."""

    def __init__(self, script, log, arguments, *, delta=True):
        command = spark_submit_command(script, *map(str, arguments), conf=CLUSTER, delta=delta)
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
                cwd="/",
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
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

    def wait_until(self, what, condition):
        """Wait until the job does something. The job may also have ended because of an earlier kill."""
        eventually(lambda: condition() or not self.is_running, what, progress=self.progress, pause_s=0.05)

    def progress(self):
        """Return a value that changes while the job works."""
        return self._log.stat().st_size, work_of(self.process.pid)

    def finish(self):
        """Wait until the job ends successfully."""
        assert exit_code(self.process) == 0, self.output

    def workers(self):
        """Return the processes in which the job's tasks run Python. Spark's daemon forks them."""
        found = self._processes(b"worker_daemon\0pyspark.worker\0")
        return [worker for worker, parent in found.items() if parent in found]

    def executors(self):
        """Return the processes of the job's executors."""
        return list(self._processes(b"CoarseGrainedExecutorBackend"))

    def _processes(self, named):
        """Return the processes of the job's session whose command line contains the text, and their parents."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes()
                parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[1:4]
            except (OSError, ValueError):
                continue
            if int(session) == self.process.pid and named in command:
                found[int(entry.name)] = int(parent)
        return found

    def stop(self):
        """Stop the job during its work, as users do. It must end cleanly."""
        assert self.is_running, self.output
        self.process.send_signal(signal.SIGTERM)
        self.finish()
        assert "stopping: " in self.output

    def kill(self):
        if self.is_running:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STALL_S)


@contextlib.contextmanager
def started_jobs(directory, *always):
    """Return a function that starts a script with these arguments and more, as a ``Job``.

    All jobs are killed at the end.
    """
    started = []

    def start(script, *more):
        started.append(Job(script, directory / f"job-{len(started)}.log", [*always, *more]))
        return started[-1]

    try:
        yield start
    finally:
        for job in started:
            job.kill()


def drawn_victims(chance, rounds):
    """Return the victim of each round. Of four consecutive rounds each victim has one."""
    drawn = [victim for _ in range(-(-rounds // len(VICTIMS))) for victim in chance.sample(VICTIMS, len(VICTIMS))]
    return drawn[:rounds]


def committed_records(broker, topic, isolation="read_committed"):
    """Return a topic's records as readers see them, once no transaction is open."""
    config = {"bootstrap.servers": broker.address, "auto.offset.reset": "earliest", "isolation.level": isolation}
    with Consumer(config) as consumer, Admin(broker.address) as admin:
        partitions = consumer.partitions_for(topic)
        latest = dict.fromkeys(partitions, "latest")
        eventually(
            lambda: admin.list_offsets(latest, isolation_level="read_committed") == admin.list_offsets(latest),
            "open transactions to end",
        )
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        records = []

        def has_all():
            records.extend(consumer.poll(200))
            return all(consumer.position(partition) >= end for partition, end in ends.items())

        eventually(has_all, "all records")
        return records


def end(job, last_victim):
    """Stop the job cleanly, unless a killed broker may be ending it."""
    if last_victim == "broker":
        job.kill()
    elif job.is_running:
        job.stop()


def kill_one(victim, job, broker, chance):
    """Kill the driver, an executor, all Python processes, or the broker, which restarts soon."""
    if victim == "driver":
        job.kill()
    elif victim == "broker":
        broker.kill()
        pause(chance.uniform(0, 1.5))
        broker.start()
    elif victim == "executor":
        for executor in chance.sample(job.executors(), 1) if job.executors() else ():
            os.kill(executor, signal.SIGKILL)
    else:
        for worker in job.workers():
            os.kill(worker, signal.SIGKILL)

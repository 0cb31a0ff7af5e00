"""Topic to topic, exactly once, while driver, Python workers and broker are killed, and while attempts of tasks fail.

The job is the one that users run; the rows are checked by a plain consumer.
"""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from millrace.clients import Admin, Consumer, Producer
from pyspark_millrace import spark_submit_command

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "topic_to_topic.py"
MILLRACE = Path(sys.executable).with_name("millrace")
DEADLINE_S = 180
RECORDS_PER_ROUND = 3000
BATCH_RECORDS = 250
VICTIMS = ("driver", "worker", "broker")


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
        self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()


class Job:
    """``jobs/topic_to_topic.py`` under spark-submit, with tasks that are tried again."""

    def __init__(self, log, arguments):
        command = spark_submit_command(JOB, *map(str, arguments))
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
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path)
    yield broker
    if broker.process.poll() is None:
        broker.kill()


@pytest.fixture
def jobs(broker, tmp_path):
    """Starts the job; all are killed in the end."""
    started = []

    def start(*more):
        arguments = ["--source", "numbers", "--target", "copies", "--checkpoint", tmp_path / "checkpoint"]
        arguments += ["--bootstrap-servers", broker.address, "--max-offsets-per-trigger", BATCH_RECORDS, *more]
        started.append(Job(tmp_path / f"job-{len(started)}.log", arguments))
        return started[-1]

    yield start
    for job in started:
        if job.is_running:
            job.kill()


def produce(broker, numbers):
    with Producer(broker.address) as producer:
        for number in numbers:
            producer.send("numbers", b"%d" % number, key=b"%d" % (number % 100))


def copies(broker, isolation="read_committed"):
    """What readers see, once nothing is open any more."""
    config = {"bootstrap.servers": broker.address, "auto.offset.reset": "earliest"}
    with Consumer({**config, "isolation.level": isolation}) as consumer, Admin(broker.address) as admin:
        partitions = consumer.partitions_for("copies")
        latest = dict.fromkeys(partitions, "latest")
        wait_for(
            "open transactions to end",
            lambda: admin.list_offsets(latest, isolation_level="read_committed") == admin.list_offsets(latest),
        )
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        values = []

        def has_all():
            values.extend(int(record.value) for record in consumer.poll(200))
            return all(consumer.position(partition) >= end for partition, end in ends.items())

        wait_for("all records", has_all)
        return values


@pytest.mark.dial("SINK_KILL_ROUNDS", seconds=60)
def test_killed_at_random_moments_every_record_is_written_once(broker, jobs, rounds):
    seed = int(os.environ.get("SINK_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"SINK_KILL_SEED={seed}")
    chance = random.Random(seed)
    with Admin(broker.address) as admin:
        for topic, partitions in (("numbers", 3), ("copies", 2)):
            admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
    victims = [victim for _ in range(-(-rounds // len(VICTIMS))) for victim in chance.sample(VICTIMS, len(VICTIMS))]
    job = jobs("--continuous", "--trigger-interval", "0 seconds")
    for number, victim in enumerate(victims[:rounds]):
        produce(broker, range(number * RECORDS_PER_ROUND, (number + 1) * RECORDS_PER_ROUND))
        if not job.is_running:
            job = jobs("--continuous", "--trigger-interval", "0 seconds")
        before = job.batches
        wait_for("two batches", lambda job=job, before=before: job.batches >= before + 2 or not job.is_running)
        threading.Event().wait(chance.uniform(0, 0.6))
        if victim == "driver":
            job.kill()
        elif victim == "broker":
            broker.kill()
            threading.Event().wait(chance.uniform(0, 1.5))
            broker.start()
        else:
            for worker in job.workers():
                os.kill(worker, signal.SIGKILL)
    if job.is_running:
        job.process.send_signal(signal.SIGTERM)
        job.process.wait(DEADLINE_S)
    last = jobs()
    assert last.process.wait(DEADLINE_S) == 0, last.output
    assert sorted(copies(broker)) == list(range(rounds * RECORDS_PER_ROUND)), f"SINK_KILL_SEED={seed}"


ATTEMPTS = Path(__file__).with_name("sink_attempts.py")


@pytest.mark.timeout(400)
def test_failed_killed_and_speculative_attempts_write_nothing_twice(broker, tmp_path):
    """On executors: one attempt fails, one kills its executor, one is overtaken by its speculative copy."""
    with Admin(broker.address) as admin:
        admin.create_topic("copies", partitions=2, configs={"retention.ms": "-1"})
    script = [sys.executable, ATTEMPTS, broker.address, "copies", tmp_path]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {path.name for path in tmp_path.glob("attempt-*")} >= {
        "attempt-failed",
        "attempt-killed",
        "attempt-overtaken",
    }
    expected = sorted(int(line) for line in ended.stdout.splitlines() if line.isdecimal())
    assert len(expected) == 60
    assert sorted(copies(broker)) == expected
    assert len(copies(broker, "read_uncommitted")) > 70, "the attempts that do not count had written rows"

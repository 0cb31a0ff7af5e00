"""Tests on a standalone cluster whose Python has everything but millrace.

Millrace comes as a zip file or from a wheel.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from pyspark_millrace import spark_submit_command
from pyspark_millrace.environment.package import build_package

from ..jvm import short_lived_options
from .spark_cluster import Cluster, clean_environment
from .waiting import STALL_S, eventually, work_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = Path(__file__).with_name("cluster_job.py")
ATTEMPTS = Path(__file__).with_name("sink_attempts.py")
PROJECT = Path(__file__).parents[2]
NUMBERS = 1000
WORDS = 300
LOOK_S = 0.3
"""Between looks at a whole table and a whole topic, which take CPU time from the cluster."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.close()


KEPT_VARIABLES = ("HOME", "JAVA_HOME", "MILLRACE_CACHE", "SPARK_SUBMIT_OPTS")


@pytest.fixture(scope="module")
def submit(cluster, module_broker):
    """Return a function that starts a driver with its steps, by default with the zip file.

    All drivers are killed at the end.
    """
    clean = clean_environment(cluster.directory / "environment")
    package = cluster.directory / "millrace.zip"
    build_package(package)
    settings = {
        "spark.master": cluster.master,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": short_lived_options(),
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    started = []

    def start(directory, *steps, script=JOB, python=clean, py_files=(package,)):
        conf = settings | {"spark.pyspark.python": str(python)}
        command = spark_submit_command(
            script, module_broker.bootstrap_servers, directory, *steps, conf=conf, py_files=py_files
        )
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1", **kept}
        log = (cluster.directory / f"driver-{len(started)}.log").open("w")
        with log:
            started.append(
                subprocess.Popen(
                    [str(part) for part in command],
                    env=environment,
                    cwd="/",
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        started[-1].log = Path(log.name)  # spark-submit writes the program's errors to its standard output
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STALL_S)


@pytest.fixture(scope="module")
def topics(module_broker):
    with Admin(module_broker.bootstrap_servers) as admin, Producer(module_broker.bootstrap_servers) as producer:
        admin.create_topic(
            "numbers", partitions=3, schema="n BIGINT NOT NULL, word STRING", configs={"retention.ms": "-1"}
        )
        for topic in ("words", "copies"):
            admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
        for n in range(NUMBERS):
            producer.send("numbers", {"n": n, "word": f"w{n % 7}"})
        send_words(producer, 0)


def send_words(producer, first):
    for n in range(first, first + WORDS):
        producer.send("words", b"%d" % n, key=b"%d" % (n % 100))
    producer.flush()


@pytest.fixture(scope="module")
def done(submit, topics, cluster):
    """Return the results and output directories of the undisturbed steps."""
    return found_by(cluster, submit(cluster.directory, "read", "view", "stream", "ingest", "sink"))


def exit_code(cluster, process):
    """Wait until a driver has ended.

    The executors' work counts as progress. A stuck driver is killed to free its cores.
    """
    working = [process, *(worker.process for worker in cluster.workers)]
    try:
        eventually(
            lambda: process.poll() is not None,
            "a driver to end",
            progress=lambda: [work_of(each.pid) for each in working],
        )
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode


def found_by(cluster, process):
    """Return the output of each step of a driver that ends successfully."""
    assert exit_code(cluster, process) == 0, errors_in(process.log.read_text())
    found = {}
    for line in process.log.read_text().splitlines():
        if line.startswith('{"'):
            found |= json.loads(line)
    return found


def errors_in(log):
    return "\n".join(line for line in log.splitlines() if " INFO " not in line)[:5000]


def test_tasks_run_where_only_the_zip_file_has_our_code(cluster, done):
    environment = cluster.directory / "environment"
    assert done["read"]["sum"] == sum(range(NUMBERS))
    assert done["read"]["python"] == [str(environment / "bin" / "python")]
    assert [code.rpartition("/millrace.zip/")[2] for code in done["read"]["code"]] == ["pyspark_millrace/__init__.pyc"]
    assert done["read"]["executors"] == 2


def test_executors_that_have_the_wheel_need_nothing_sent(cluster, submit, topics):
    python = clean_environment(cluster.directory / "with-the-wheel")
    install_wheel(python, cluster.directory)
    paths = run(python.with_name("millrace"), "paths").split()
    found = found_by(cluster, submit(cluster.directory, "read", python=python, py_files=()))
    assert found["read"]["sum"] == sum(range(NUMBERS))
    assert found["read"]["python"] == [str(python)]
    [code] = found["read"]["code"]
    assert Path(code).is_relative_to(python.parent.parent / "lib")
    assert str(python.parent.parent / "share" / "millrace" / "jobs") in paths


def install_wheel(python, directory):
    """Install our wheel, built from this checkout, with an interpreter whose environment has the dependencies."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", directory, PROJECT)
    [wheel] = directory.glob("millrace-*.whl")
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)


def run(*command):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(part) for part in command]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd="/", env=environment).stdout


def test_batches_streams_sql_ingest_and_sink_work_on_executors(cluster, done, module_broker):
    assert done["view"] == {"count(1)": NUMBERS // 2, "max(n)": NUMBERS - 2}
    for table in ("streamed", "ingested"):
        rows = DeltaTable(cluster.directory / table).to_pyarrow_table()
        assert sorted(rows["n"].to_pylist()) == list(range(NUMBERS))
        assert set(rows["word"].to_pylist()) == {f"w{n}" for n in range(7)}
    assert copies(module_broker)[:WORDS] == list(range(WORDS))


def test_executors_and_workers_killed_in_mid_job_lose_and_double_nothing(cluster, submit, done, module_broker):
    with Producer(module_broker.bootstrap_servers) as producer:
        send_words(producer, WORDS)
    process = submit(cluster.directory, "until_stopped")
    eventually(
        lambda: len(kept(cluster)) >= 200 and len(copies(module_broker)) > WORDS,
        "the first batches",
        progress=lambda: work_of(process.pid),
        pause_s=LOOK_S,
    )
    executor = next(iter(executors_of(cluster.workers[0])))
    os.kill(executor, signal.SIGKILL)
    eventually(
        lambda: executors_of(cluster.workers[0]) - {executor},
        "another executor",
        progress=lambda: work_of(process.pid),
        pause_s=LOOK_S,
    )
    cluster.workers[1].kill()
    with Producer(module_broker.bootstrap_servers) as producer:
        send_words(producer, 2 * WORDS)
    cluster.add_worker("third", "127.0.0.2")
    expected = list(range(3 * WORDS))
    eventually(
        lambda: process.poll() is not None or kept(cluster) == copies(module_broker) == expected,
        "all words",
        progress=lambda: (len(kept(cluster)), len(copies(module_broker)), work_of(process.pid)),
        pause_s=LOOK_S,
    )
    (cluster.directory / "stop").touch()
    code = exit_code(cluster, process)
    log = process.log.read_text()
    assert code == 0, errors_in(log)
    assert len(re.findall("ERROR TaskSchedulerImpl: Lost executor", log)) >= 2
    assert kept(cluster) == expected
    assert copies(module_broker) == expected


def test_rows_of_failed_killed_and_overtaken_attempts_are_not_committed(cluster, submit, module_broker, tmp_path):
    # One attempt fails, one kills its executor, and one never ends and is overtaken by its speculative copy.
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic("attempts", partitions=6, configs={"retention.ms": "-1"})
    process = submit(tmp_path, "attempts", script=ATTEMPTS)
    assert exit_code(cluster, process) == 0, errors_in(process.log.read_text())
    mishaps = {path.name.removeprefix("attempt-") for path in tmp_path.glob("attempt-*")}
    assert mishaps == {"failed", "killed", "waiting", "overtaking"}
    expected = sorted(int(line) for line in process.log.read_text().splitlines() if line.isdecimal())
    assert len(expected) == 60
    latest = dict.fromkeys((TopicPartition("attempts", partition) for partition in range(6)), "latest")
    with Admin(module_broker.bootstrap_servers) as admin:
        eventually(
            lambda: admin.list_offsets(latest, isolation_level="read_committed") == admin.list_offsets(latest),
            "the transactions of the other attempts to end",
        )
    assert written(module_broker, "attempts") == expected
    assert len(written(module_broker, "attempts", "read_uncommitted")) >= 60 + 3 * 8, "the attempts have written rows"


def kept(cluster):
    """Return the words in the table of the direct ingest."""
    if not DeltaTable.is_deltatable(str(cluster.directory / "kept")):
        return []
    return sorted(map(int, DeltaTable(cluster.directory / "kept").to_pyarrow_table()["value"].to_pylist()))


def copies(broker):
    """Return the committed words in the topic of the sink."""
    return written(broker, "copies")


def written(broker, topic, isolation="read_committed"):
    """Return the numbers in a topic."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "isolation.level": isolation}
    with Consumer(config) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += [int(record.value) for record in consumer.poll(200)]
        return sorted(found)


def executors_of(worker):
    """Return the processes of a worker's executors."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == worker.process.pid and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except (OSError, ValueError):
            continue
    return found

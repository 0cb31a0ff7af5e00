"""Tests of exactly-once copies from topic to topic while processes are killed.

The driver, an executor, workers and the broker are killed. The job is the users' own. A plain consumer checks the rows,
and so does a reader of the broker's files that follows the format's description.
"""

import os
import random
from functools import partial
from pathlib import Path

import pytest

from millrace.clients import Admin, Producer

from .job_kills import committed_records, drawn_victims, end, kill_one, running_broker, started_jobs
from .log_by_the_book import committed_values
from .waiting import eventually, pause

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOB = ROOT / "jobs" / "topic_to_topic.py"
RECORDS_PER_ROUND = 3000
BATCH_RECORDS = 250


@pytest.fixture
def broker(tmp_path):
    with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def jobs(broker, tmp_path):
    """Return a function that starts the job. All jobs are killed at the end."""
    always = ["--source", "numbers", "--target", "copies", "--checkpoint", tmp_path / "checkpoint"]
    always += ["--bootstrap-servers", broker.address, "--max-offsets-per-trigger", BATCH_RECORDS]
    with started_jobs(tmp_path, *always) as start:
        yield partial(start, JOB)


def produce(broker, numbers):
    with Producer(broker.address) as producer:
        for number in numbers:
            producer.send("numbers", b"%d" % number, key=b"%d" % (number % 100))


def copies(broker, isolation="read_committed"):
    return [int(record.value) for record in committed_records(broker, "copies", isolation)]


@pytest.mark.dial("SINK_KILL_ROUNDS", seconds=60)
def test_a_sink_that_is_killed_at_random_moments_writes_every_record_once(broker, jobs, rounds):
    seed = int(os.environ.get("SINK_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"SINK_KILL_SEED={seed}")
    chance = random.Random(seed)
    with Admin(broker.address) as admin:
        for topic, partitions in (("numbers", 3), ("copies", 2)):
            admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
    victims = drawn_victims(chance, rounds)
    job, hits = jobs("--continuous", "--trigger-interval", "0 seconds"), 0
    for number, victim in enumerate(victims):
        produce(broker, range(number * RECORDS_PER_ROUND, (number + 1) * RECORDS_PER_ROUND))
        if not job.is_running:
            job = jobs("--continuous", "--trigger-interval", "0 seconds")
        before = job.batches
        job.wait_until("two batches", lambda job=job, before=before: job.batches >= before + 2)
        pause(chance.uniform(0, 0.6))
        hits += job.is_running
        kill_one(victim, job, broker, chance)
    end(job, victims[-1])
    # A killed broker may end the job. The next round notices it.
    assert hits >= rounds // 2, job.output
    last = jobs("--max-offsets-per-trigger", 1_000_000)
    last.finish()
    assert sorted(copies(broker)) == list(range(rounds * RECORDS_PER_ROUND)), f"SINK_KILL_SEED={seed}"
    broker.kill()
    assert sorted(map(int, committed_values(broker.data, "copies"))) == list(range(rounds * RECORDS_PER_ROUND))


def test_one_of_two_drivers_of_a_query_fails_and_no_record_is_written_twice(broker, jobs):
    with Admin(broker.address) as admin:
        for topic, partitions in (("numbers", 3), ("copies", 2)):
            admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
    produce(broker, range(RECORDS_PER_ROUND))
    both = [jobs("--continuous", "--trigger-interval", "0 seconds") for _ in range(2)]
    eventually(
        lambda: not all(job.is_running for job in both),
        "one query to fail",
        progress=lambda: [job.progress() for job in both],
    )
    [loser] = [job for job in both if not job.is_running]
    [winner] = [job for job in both if job.is_running]
    assert loser.process.returncode == 1
    assert "\nerror: " in loser.output
    count = RECORDS_PER_ROUND + 2 * BATCH_RECORDS
    produce(broker, range(RECORDS_PER_ROUND, count))
    eventually(lambda: len(copies(broker)) >= count, "the copies of all records", progress=winner.progress, pause_s=0.3)
    winner.stop()
    assert sorted(copies(broker)) == list(range(count))

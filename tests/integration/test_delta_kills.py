"""Tests of jobs from topic to Delta while processes are killed.

The jobs append and merge. The driver, an executor, workers and the broker are killed. The jobs are the users' own, and
delta-rs reads the tables. The auditor must give the same result.
"""

import os
import random
from pathlib import Path

import pytest
from deltalake import DeltaTable

from millrace.clients import Admin, Producer

from .job_kills import MILLRACE, drawn_victims, end, kill_one, running_broker, started_jobs
from .waiting import pause, run_to_end

pytestmark = pytest.mark.spark

JOBS = Path(__file__).parents[2] / "jobs"
CHANGES_PER_ROUND = 900
BATCH_RECORDS = 150
KEYS = 300
PLACED = ("--columns", "id,n,op,__partition,__offset")
PIPELINES = {
    "appended": (
        "ingest_to_delta.py",
        [(*PLACED, "--writer", "direct"), (*PLACED, "--writer", "spark")],
        ("_checkpoints/ingest", "each row was looked at"),
    ),
    "merged": (
        "upsert_to_delta.py",
        [("--key", "id", "--delete-when", "op = 'd'", "--drop", "op")],
        ("_checkpoints/upsert", "no rows were counted: the query merges"),
    ),
}
"""Jobs with the options of their starts, and how each is audited.

Starts use the lists of options in turn, so that the writers of a table take turns on one checkpoint.
"""


@pytest.fixture
def broker(tmp_path):
    with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def jobs(broker, tmp_path):
    """Return a function that starts a job. All jobs are killed at the end."""
    always = ["--topic", "changes", "--table", tmp_path / "table", "--bootstrap-servers", broker.address]
    with started_jobs(tmp_path, *always, "--max-offsets-per-trigger", BATCH_RECORDS) as start:
        yield lambda script, *more: start(JOBS / script, *more)


class History:
    """Random changes of keys, with the rows that remain."""

    def __init__(self, chance):
        self._chance = chance
        self.sent, self.rows = [], {}

    def more(self, count):
        for _ in range(count):
            number = len(self.sent)
            change = {"id": self._chance.randrange(KEYS), "n": number, "op": self._chance.choice("iuud")}
            self.sent.append(change)
            if change["op"] == "d":
                self.rows.pop(change["id"], None)
            else:
                self.rows[change["id"]] = number
        return self.sent[-count:]


def rows_in(table, *names):
    found = DeltaTable(str(table)).to_pyarrow_table().select(names).to_pydict()
    return sorted(zip(*found.values(), strict=True))


def audited(broker, table, checkpoint):
    """Return the auditor's result.

    It has the checkpoint, the table and the topic, and no knowledge of the sent records.
    """
    command = [MILLRACE, "audit", "-c", table / checkpoint, "-t", table, "-b", broker.address]
    ended = run_to_end(command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.dial("DELTA_KILL_ROUNDS", seconds=90)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_table_has_every_row_once_although_its_job_is_killed_at_random_moments(
    broker, jobs, tmp_path, rounds, pipeline
):
    seed = int(os.environ.get("DELTA_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"DELTA_KILL_SEED={seed}")
    chance = random.Random(seed)
    script, ways, (checkpoint, how) = PIPELINES[pipeline]
    history = History(chance)
    with Admin(broker.address) as admin:
        schema = "id INT NOT NULL, n BIGINT, op STRING"
        admin.create_topic("changes", partitions=3, schema=schema, key_columns=["id"], configs={"retention.ms": "-1"})
    victims = drawn_victims(chance, rounds)

    def start():
        return jobs(script, *chance.choice(ways), "--continuous", "--trigger-interval", "0 seconds")

    job, hits = start(), 0
    for victim in victims:
        with Producer(broker.address) as producer:
            producer.send_batch("changes", history.more(CHANGES_PER_ROUND))
        if not job.is_running:
            job = start()
        before = job.batches
        job.wait_until("a batch", lambda job=job, before=before: job.batches > before)
        pause(chance.uniform(0, 2))
        hits += job.is_running
        kill_one(victim, job, broker, chance)
    end(job, victims[-1])
    # A killed broker may end the job. The next round notices it.
    assert hits >= rounds // 2, job.output
    last = jobs(script, *ways[0], "--max-offsets-per-trigger", 1_000_000)
    last.finish()
    if pipeline == "merged":
        assert rows_in(tmp_path / "table", "id", "n") == sorted(history.rows.items()), f"DELTA_KILL_SEED={seed}"
    else:
        expected = sorted((change["n"], change["id"], change["op"]) for change in history.sent)
        assert rows_in(tmp_path / "table", "n", "id", "op") == expected, f"DELTA_KILL_SEED={seed}"
    said = audited(broker, tmp_path / "table", checkpoint)
    assert how in said
    assert "proved: each range of offsets landed once" in said

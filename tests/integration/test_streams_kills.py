"""Tests of a topology with two repartitions while processes are killed.

The results equal those without kills. The driver, an executor, workers and the broker are killed. The job is the users'
own. Delta-rs reads the tables, and a plain consumer the topic.
"""

import json
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from millrace.clients import Admin, Producer

from .job_kills import committed_records, drawn_victims, end, kill_one, running_broker, started_jobs
from .waiting import pause

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOB = Path(__file__).parents[2] / "jobs" / "run_topology.py"
TOPOLOGY = Path(__file__).with_name("killed_topology.py")
ORDERS_PER_ROUND = 600
BATCH_RECORDS = 150
REGIONS = {f"c{number}": ("north", "south", "east")[number % 3] for number in range(40)}
TOPICS = {"customers": 2, "orders": 3, "lines": 2}


@pytest.fixture
def broker(tmp_path):
    with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def jobs(broker, tmp_path):
    """Return a function that starts the job. All jobs are killed at the end."""
    tables = [f"--table={name}={tmp_path / name}" for name in ("lines", "totals")]
    always = ["--topology", TOPOLOGY, *tables, "--checkpoint", tmp_path / "checkpoint"]
    always += ["--bootstrap-servers", broker.address, "--max-offsets-per-trigger", BATCH_RECORDS]
    with started_jobs(tmp_path, *always) as start:
        yield partial(start, JOB)


def lines_of(broker):
    return [(record.key.decode(), json.loads(record.value)) for record in committed_records(broker, "lines")]


def table(path):
    return DeltaTable(str(path)).to_pyarrow_table().to_pylist()


@pytest.mark.dial("STREAMS_KILL_ROUNDS", seconds=90)
def test_a_topology_killed_at_random_moments_gives_the_same_results(broker, jobs, tmp_path, rounds):
    seed = int(os.environ.get("STREAMS_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"STREAMS_KILL_SEED={seed}")
    chance = random.Random(seed)
    with Admin(broker.address) as admin:
        for topic, partitions in TOPICS.items():
            admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
    with Producer(broker.address) as producer:
        for customer, region in REGIONS.items():
            producer.send("customers", region.encode(), key=customer.encode(), timestamp_ms=1)
    orders = {}
    victims = drawn_victims(chance, rounds)
    job, hits = jobs("--continuous", "--trigger-interval", "0 seconds"), 0
    is_new = True
    for victim in victims:
        if not job.is_running:
            job, is_new = jobs("--continuous", "--trigger-interval", "0 seconds"), True
        job.wait_until("the job to begin", lambda job=job: "(checkpoint " in job.output)
        job.wait_until("a query", lambda job=job: (tmp_path / "checkpoint" / "offsets" / "0").exists())
        before = job.batches
        with Producer(broker.address) as producer:
            for number in range(len(orders), len(orders) + ORDERS_PER_ROUND):
                orders[f"o{number}"] = {"customer": chance.choice(list(REGIONS)), "amount": chance.randint(1, 100)}
                value = json.dumps(orders[f"o{number}"]).encode()
                producer.send("orders", value, key=f"o{number}".encode(), timestamp_ms=1000 + number)
        # Each job completes at least one batch. Then half of the kills come before it has recovered from the last one.
        if is_new or chance.random() < 0.5:
            job.wait_until("a batch", lambda job=job, before=before: job.batches > before)
        else:
            job.wait_until("tasks in Python", job.workers)
        is_new = False
        pause(chance.uniform(0, 2))
        hits += job.is_running
        kill_one(victim, job, broker, chance)
    end(job, victims[-1])
    # A killed broker may end the job. The next round notices it.
    assert hits >= rounds // 2, job.output
    last = jobs("--max-offsets-per-trigger", 1_000_000)
    # The job runs the interrupted batch again, and then the rest.
    last.finish()
    check(broker, tmp_path, orders, f"STREAMS_KILL_SEED={seed}")


def check(broker, directory, orders, replay):
    expected = {
        name: (order["customer"], {"order": name, **order, "region": REGIONS[order["customer"]]})
        for name, order in orders.items()
    }
    written = [(row["key"], json.loads(row["value"])) for row in table(directory / "lines")]
    for found in (written, lines_of(broker)):
        assert len(found) == len(expected), replay
        assert {line["order"]: (key, line) for key, line in found} == expected, replay
    totals = Counter()
    for order in orders.values():
        totals[REGIONS[order["customer"]]] += order["amount"]
    assert {row["key"]: row["value"] for row in table(directory / "totals")} == totals, replay

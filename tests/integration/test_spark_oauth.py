"""Tests of Spark with tokens of an OpenID provider.

The tests cover the source, the writer and topologies. The driver and the executors each get tokens of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace_broker.testing import EmbeddedBroker

from ..oidc_provider import AUDIENCE, CLIENT_ID, ISSUER, SECRET, running
from ..properties_files import write_properties
from .job_kills import CLUSTER
from .waiting import STALL_S, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COPIES = ("written", "streamed", "transformed")


def test_source_writer_and_topology_authenticate_in_driver_and_executors(tmp_path: Path) -> None:
    with running() as provider:
        options = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
            "super.users": f"User:{CLIENT_ID}",
        }
        with EmbeddedBroker(tmp_path / "broker", options=options) as broker:
            address = f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}"
            client = {
                "bootstrap.servers": address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
                "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
                "sasl.oauthbearer.client.credentials.client.secret": SECRET,
            }
            with Admin(client) as admin, Producer(client) as producer:
                for topic in ("numbers", *COPIES):
                    admin.create_topic(topic, schema="n BIGINT", partitions=2)
                for partition in (0, 1):
                    producer.send_table("numbers", {"n": list(range(100))}, partition=partition).result(STALL_S)
            write_properties(tmp_path / "client.properties", client)
            asked = provider.asked["/token"]
            job = Path(__file__).with_name("oauth_job.py")
            with (tmp_path / "log").open("w") as log:
                command = [sys.executable, job, address, tmp_path, json.dumps(CLUSTER)]
                ended = run_to_end(command, stdout=log, stderr=subprocess.STDOUT)
            output = (tmp_path / "log").read_text()
            assert ended.returncode == 0, output[-5000:]
            assert "executors: 2" in output
            # The driver, and the Python of each of the two executors, are clients of the provider.
            assert provider.asked["/token"] >= asked + 3
            with Consumer(client) as consumer:
                for topic in COPIES:
                    consumer.assign([TopicPartition(topic, partition) for partition in (0, 1)])
                    consumer.seek_to_beginning()
                    found: list[int] = []
                    while len(found) < 200:
                        records = consumer.poll(STALL_S * 1000)
                        assert records, f"{topic} has {len(found)} records"
                        found += [record.value["n"] for record in records]
                    assert sorted(found) == sorted([*range(100), *range(100)]), topic

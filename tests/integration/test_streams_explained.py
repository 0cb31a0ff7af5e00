"""Tests of ``millrace streams explain``.

The command shows compiled plans with the topics' real columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from millrace.clients import Admin
from millrace.errors import UnknownTopicOrPartitionError
from millrace.schemas import parse_schema
from millrace_streams.cli.streams import app

if TYPE_CHECKING:
    from millrace_broker.testing import EmbeddedBroker

HOURLY_DEPARTURES = Path(__file__).parents[2] / "jobs" / "hourly_departures.py"
COLUMNS = "origin STRING NOT NULL, carrier STRING, dep_delay DOUBLE, time_hour TIMESTAMP"


def test_the_command_asks_the_broker_for_columns(broker: EmbeddedBroker) -> None:
    arguments = ["explain", str(HOURLY_DEPARTURES), "-b", broker.bootstrap_servers]
    unknown = CliRunner().invoke(app, arguments).exception
    assert isinstance(unknown, UnknownTopicOrPartitionError)
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topic("flights", schema=parse_schema(COLUMNS), key_columns=["origin"])
    explained = CliRunner().invoke(app, arguments).stdout
    assert "columns pushed down: origin, dep_delay, time_hour\n" in explained
    assert "Records move: no (bucket = source partition)\n" in explained

"""Tests of the table of Kafka's calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import millrace_broker.kafka_api
from millrace.config.broker import BrokerConfig
from millrace.kafka_protocol.calls.table import ApiKey
from millrace_broker.kafka_api import KafkaState, kafka_calls

_IMPORTED = """
import sys
import millrace_broker.server
from millrace.config.broker import BrokerConfig
from millrace_broker.kafka_api import KafkaState, kafka_calls
kafka_calls(KafkaState(BrokerConfig.load({})))
print(*sorted(name for name in sys.modules if name.startswith("millrace_broker.kafka_api.")))
"""


def test_each_call_has_the_handler_in_the_module_of_its_name() -> None:
    for key, call in kafka_calls(KafkaState(BrokerConfig.load({}))).items():
        name = f"millrace_broker.kafka_api.{ApiKey(key).name.lower()}"
        assert (call.handle.__module__, call.refuse.__module__) == (name, name)


def test_a_module_of_the_name_of_a_call_is_in_the_table() -> None:
    modules = {path.stem for path in Path(millrace_broker.kafka_api.__file__).parent.glob("*.py")}
    served = kafka_calls(KafkaState(BrokerConfig.load({})))
    for key in ApiKey:
        assert (key.name.lower() in modules) == (key in served)


def test_a_broker_starts_without_the_modules_of_single_calls() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    imported = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert "table" in imported
    assert not imported & {key.name.lower() for key in ApiKey}


def test_client_metrics_are_answered_and_not_advertised() -> None:
    """Otherwise Java's clients ask for them all the time."""
    state = KafkaState(BrokerConfig.load({}))
    calls = kafka_calls(state)
    advertised = {each.api_key for each in state.api_versions}
    assert set(calls) - advertised == {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS}
    assert ApiKey.PUSH_TELEMETRY not in calls

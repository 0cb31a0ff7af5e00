"""Tests of sink options, which are all checked before the first write."""

import pytest

from millrace.errors import UsageError
from pyspark_millrace.sink.options import TRANSACTION_TIMEOUT_MS, DeliveryGuarantee, parse_sink_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}


def refusal(*, is_stream=False, **options):
    with pytest.raises(UsageError) as caught:
        parse_sink_options(
            {**BASE, **{name.replace("__", "."): value for name, value in options.items()}}, is_stream=is_stream
        )
    return caught.value.message


def test_sink_options_that_are_not_given_have_their_defaults():
    options = parse_sink_options(BASE, is_stream=True)
    assert (options.topic, options.guarantee, options.include_headers) == (
        "orders",
        DeliveryGuarantee.EXACTLY_ONCE,
        True,
    )
    assert (options.transaction_app_id, options.transaction_version) == (None, None)


def test_fewer_acks_are_possible_without_transactions():
    options = parse_sink_options({**BASE, "kafka.acks": "1", "deliveryGuarantee": "at-least-once"}, is_stream=True)
    assert options.producer_config(None)["acks"] == "1"


def test_a_producer_takes_part_under_the_external_id_and_has_time():
    options = parse_sink_options({**BASE, "kafka.linger.ms": "5"}, is_stream=True)
    assert options.producer_config("query") == {
        "bootstrap.servers": "localhost:9092",
        "linger.ms": "5",
        "transactional.id": "query",
        "coordinator.key": "query",
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    }
    assert options.producer_config(None) == {"bootstrap.servers": "localhost:9092", "linger.ms": "5"}
    own = parse_sink_options({**BASE, "kafka.transaction.timeout.ms": "7000"}, is_stream=True)
    assert own.producer_config("query")["transaction.timeout.ms"] == "7000"


def test_names_are_not_case_sensitive_and_sparks_own_are_known():
    options = parse_sink_options(
        {**BASE, "DELIVERYGUARANTEE": "At-Least-Once", "checkpointlocation": "/x", "queryname": "q"}, is_stream=True
    )
    assert not options.is_exactly_once


@pytest.mark.parametrize(
    ("options", "is_stream", "message"),
    [
        ({"txnVersion": "3"}, False, "txnAppId and txnVersion go together"),
        ({"txnAppId": "a"}, False, "txnAppId and txnVersion go together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, False, "txnVersion='-1': expected a whole number from 0"),
        ({"txnAppId": "a", "txnVersion": "3"}, True, "a stream numbers its micro-batches"),
        ({"txnAppId": " "}, True, "txnAppId=' ': expected a name"),
        ({"txnAppId": "a", "deliveryGuarantee": "at-least-once"}, True, "are for deliveryGuarantee=exactly-once"),
        ({"kafka__coordinator.key": "x"}, True, "set txnAppId instead"),
        ({"kafka__acks": "1"}, True, "kafka.acks='1' is not possible with deliveryGuarantee=exactly-once"),
        ({"kafka__enable.idempotence": "False"}, False, "leave it out, or set deliveryGuarantee=at-least-once"),
        ({"assign": "x"}, True, "option assign='x' is not supported: the option is for reading"),
        ({"topics": "x"}, True, "unknown option topics='x': did you mean topic"),
    ],
)
def test_wrong_options_are_named(options, is_stream, message):
    assert message in refusal(is_stream=is_stream, **options)


def test_secrets_are_not_shown():
    options = parse_sink_options({**BASE, "kafka.client.id": "hidden"}, is_stream=True)
    assert "hidden" not in repr(options)

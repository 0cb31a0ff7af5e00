"""Tests of a write's identity, by which duplicates are detected."""

import pytest

from millrace.errors import UsageError
from pyspark_millrace.sink.identity import BATCH_ID, QUERY_ID, identity_of_batch, identity_of_stream
from pyspark_millrace.sink.options import parse_sink_options

IN_A_QUERY = {QUERY_ID: "q-1", BATCH_ID: "7"}


def options(*, is_stream, **given):
    return parse_sink_options({"bootstrap.servers": "h:1", "topic": "orders", **given}, is_stream=is_stream)


def test_a_stream_is_named_by_its_query_and_counted_by_its_batches():
    found = identity_of_stream(options(is_stream=True), "attempt", IN_A_QUERY.get)
    assert (found.external_id, found.epoch, found.owner, found.attempt) == ("spark-q-1", 7, "query q-1", "attempt")
    assert found.retention_ms == 0, "a query may come back after any time"


def test_a_name_for_a_stream_belongs_to_its_query():
    found = identity_of_stream(options(is_stream=True, txnAppId="mine"), "attempt", IN_A_QUERY.get)
    assert (found.external_id, found.owner) == ("mine", "query q-1")


@pytest.mark.parametrize("missing", [QUERY_ID, BATCH_ID])
def test_a_stream_that_is_not_known_is_not_written_exactly_once(missing):
    known = {name: value for name, value in IN_A_QUERY.items() if name != missing}
    with pytest.raises(UsageError, match=rf"no property {missing}.*deliveryGuarantee=at-least-once"):
        identity_of_stream(options(is_stream=True), "attempt", known.get)


def test_a_batch_is_one_of_its_own_also_within_a_query():
    # Two writes of one foreachBatch, to any topics, must have different identities.
    one, other = (identity_of_batch(options(is_stream=False), attempt, IN_A_QUERY.get) for attempt in ("a", "b"))
    assert one.external_id != other.external_id
    assert one.retention_ms > 0, "no task will ask for it again"


def test_a_named_batch_belongs_to_its_query_and_topic():
    named = options(is_stream=False, txnAppId="mine", txnVersion="3")
    outside, within = (identity_of_batch(named, "a", known.get) for known in ({}, IN_A_QUERY))
    assert (outside.external_id, outside.epoch, outside.owner) == ("mine", 3, "batch writes to orders")
    assert (within.external_id, within.epoch, within.owner) == ("mine", 3, "query q-1 to orders")

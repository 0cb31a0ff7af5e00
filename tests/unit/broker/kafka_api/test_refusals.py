"""Tests of the broker's errors as responses in each call version."""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import (
    AbortableTransactionError,
    CoordinatorLoadInProgressError,
    InvalidTxnStateError,
    NotCoordinatorError,
)
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.kafka_protocol.calls.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millrace.kafka_protocol.lookup import request_class, response_class
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.kafka_api import KafkaState, describe_groups, kafka_calls, txn_offset_commit

_CALLS = kafka_calls(KafkaState(BrokerConfig.load({})))


@pytest.mark.parametrize("key", sorted(_CALLS), ids=lambda key: ApiKey(key).name.lower())
def test_each_version_of_a_call_has_a_response_for_an_error(key: int) -> None:
    call = _CALLS[key]
    for version in call.versions:
        request = request_class(key).of_defaults()
        if key == ApiKey.PRODUCE:
            setattr(request, "acks", 1)  # noqa: B010 - frozen for the type checker only
        response = call.refuse(request, version, NotCoordinatorError.code)
        assert response is not None
        assert isinstance(response_class(key).decode(response.encode(version), version), response_class(key))


@pytest.mark.parametrize("version", _CALLS[ApiKey.DESCRIBE_GROUPS].versions)
def test_the_text_of_an_error_is_left_out_of_versions_without_it(version: int) -> None:
    error = pb.Error(code=CoordinatorLoadInProgressError.code, message="it is being loaded")
    group = pb.DescribeGroupsResponse.Group(group_id="g", error=error)
    described = describe_groups._group(group, version, authorized_operations=0)
    assert described.error_code == CoordinatorLoadInProgressError.code
    assert described.error_message == ("it is being loaded" if version >= 6 else None)


@pytest.mark.parametrize("version", _CALLS[ApiKey.TXN_OFFSET_COMMIT].versions)
def test_offsets_of_a_transaction_to_abort_get_the_error_that_the_version_has(version: int) -> None:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=(partition,))
    request = TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=0, topics=(topic,)
    )
    answer = txn_offset_commit.refuse(request, version, AbortableTransactionError.code)
    expected = AbortableTransactionError if version >= 4 else InvalidTxnStateError
    assert answer.topics[0].partitions[0].error_code == expected.code

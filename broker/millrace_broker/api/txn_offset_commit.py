"""Handler of TxnOffsetCommit, whose offsets take effect when the transaction commits."""

from __future__ import annotations

import functools

from millrace.errors import (
    BrokerUnavailableError,
    CoordinatorLoadInProgressError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RequestTimedOutError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.commits import checked_commits
from millrace_broker.api.common.group_kinds import SHARE, check_is_not
from millrace_broker.api.common.identities import identity_of
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.transactions import ProducerIdAndEpoch


@authorized("TxnOffsetCommit")
async def handle(
    broker: Broker, request: pb.TxnOffsetCommitRequest, context: RequestContext
) -> pb.TxnOffsetCommitResponse:
    """Commit the offsets within the transaction.

    Errors of a partition are reported per partition; others end the call. If the transaction's coordinator cannot be
    asked now, raise ``CoordinatorLoadInProgressError``, as Kafka does. Raise the error of ``check_is_not`` for the id
    of a share group.
    """
    if request.producer_id < 0 or request.producer_epoch < 0:
        raise InvalidRequestError("TxnOffsetCommit without a producer id and epoch: initialise the transactions first")
    shard = await broker.groups.wait_for_shard(request.group_id)
    find = broker.transactions.join_offsets if request.adds_offsets else broker.transactions.verify_offsets
    verify = functools.partial(
        find,
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.group_id,
        coordinator_key=request.coordinator_key,
    )
    try:
        transaction = await shard.log.transaction(
            request.producer_id, request.producer_epoch, verify, begins=request.adds_offsets
        )
    except (BrokerUnavailableError, RequestTimedOutError, LeaderNotAvailableError) as error:
        raise CoordinatorLoadInProgressError(error.message) from None
    response = pb.TxnOffsetCommitResponse()
    commits = await checked_commits(broker, request.topics, response.topics)
    shard = await broker.groups.wait_for_shard(request.group_id)  # the leader may have changed meanwhile
    if request.group_id not in shard.entries:
        await check_is_not(broker, request.group_id, SHARE, is_new=True)
    await shard.commit_transactional(request.group_id, identity_of(request), commits, transaction)
    return response

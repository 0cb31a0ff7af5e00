"""Faults planted on purpose: each takes one rule out of the broker, and the simulator has to notice.

``PLANTED`` names them. ``plant`` puts one in place while a run is made in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.controller import elections
from millrace_broker.controller.model import Leadership
from millrace_broker.log import PartitionLog
from millrace_broker.log.producers import ProducerStates
from millrace_broker.replicas import HostedReplica, ReplicaManager
from millrace_broker.replication import Follower, Leader, Replica
from millrace_broker.transactions import markers
from millrace_broker.transactions.metadata import Transaction

Patches = Mapping[str, Any]
"""What stands where instead: by module, class and name."""

_REPLICATION: Final = "millrace_broker.replication"
_TRANSACTIONS: Final = "millrace_broker.transactions"


def _watermark_at_own_end(leader: Leader, now_ms: int) -> bool:
    has_risen = leader._log_end > leader._high_watermark
    leader._high_watermark = max(leader._high_watermark, leader._log_end)
    return has_risen


def _joins_when_alive(leader: Leader, follower: int) -> bool:
    return leader._asked is None and follower not in leader._isr and leader._is_alive(follower)


def _truncated_to_watermark(follower: Follower) -> tuple[Any, ...]:
    return follower._truncated(follower._high_watermark)


_lead = ReplicaManager._lead


def _lead_without_producers(manager: ReplicaManager, replica: HostedReplica, epoch: int) -> None:
    replica.log._producers = ProducerStates()
    _lead(manager, replica, epoch)


_elect = elections.elect


def _elect_unclean(context: Any, partition: Any, current: Any, occasion: elections.Occasion) -> Any:
    is_offline = occasion is elections.Occasion.OFFLINE
    return _elect(context, partition, current, elections.Occasion.UNCLEAN if is_offline else occasion)


def _elect_any(context: Any, partition: Any, current: Any, occasion: elections.Occasion) -> Any:
    """The first replica that is alive, in sync or not."""
    live = context.online_replicas(partition, context.assignments[partition].replicas)
    return elections.Elected(live[-1], tuple({live[-1], *current.isr}), live) if live else None


_write_markers = markers.write_markers


async def _write_markers_but_one(transport: Any, transaction: Transaction, coordinator_epoch: int) -> bool:
    some = frozenset(sorted(transaction.partitions)[:-1])
    return await _write_markers(transport, replace(transaction, partitions=some), coordinator_epoch)


async def _write_commits(transport: Any, transaction: Transaction, coordinator_epoch: int) -> bool:
    marker = markers.Marker(
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        committed=True,
        coordinator_epoch=coordinator_epoch,
        version=transaction.version,
    )
    for partition in sorted(transaction.partitions):
        await markers._write(transport, partition, marker, transaction.transactional_id)
    return True


def _end_without_stable_offset(log: PartitionLog, isolation_level: pb.IsolationLevel.ValueType) -> int:
    return log.high_watermark


def _decided_in_the_same_epoch(leadership: Leadership, controller_epoch: int, *, leader: int, isr: Any) -> Leadership:
    return replace(leadership, leader=leader, isr=tuple(isr), controller_epoch=controller_epoch)


async def _nothing_to_verify(*_: Any, **__: Any) -> None:
    """Whatever a producer says is true."""


_decided = Replica.decided


def _decided_whenever(replica: Replica, decision: Any, log: Any, now_ms: int) -> Any:
    replica._leader_epoch = -1
    return _decided(replica, decision, log, now_ms)


PLANTED: Final[Mapping[str, Patches]] = {
    "the watermark is at the leader's own end": {
        f"{_REPLICATION}.leader.Leader._raise_watermark": _watermark_at_own_end,
    },
    "acknowledged before replicas have it": {
        f"{_REPLICATION}.leader.Leader.is_acknowledged": lambda leader, end_offset: True,
    },
    "into the ISR before the watermark": {
        f"{_REPLICATION}.leader.Leader._may_join": _joins_when_alive,
    },
    "followers go back to the watermark, not by epochs": {
        f"{_REPLICATION}.follower.Follower.begin": _truncated_to_watermark,
    },
    "who is about to leave the ISR is not waited for": {
        f"{_REPLICATION}.leader.Leader.maximal_isr": property(lambda leader: leader._isr - set(leader._followers)),
        f"{_REPLICATION}.leader.Leader._is_near": lambda leader, follower, now_ms: False,
    },
    "unclean elections": {
        "millrace_broker.controller.partition_states.elect": _elect_unclean,
    },
    "anybody alive is elected, and the old ISR stays": {
        "millrace_broker.controller.partition_states.elect": _elect_any,
    },
    "a new leader in the old epoch": {
        "millrace_broker.controller.model.Leadership.decided_anew": _decided_in_the_same_epoch,
    },
    "decisions of the past are taken over": {
        f"{_REPLICATION}.partition.Replica.decided": _decided_whenever,
        "millrace_broker.cluster.member.check_controller_epoch": lambda known, requested: None,
        "millrace_broker.replicas.manager.check_controller_epoch": lambda known, requested: None,
    },
    "a new leader forgets producers": {
        "millrace_broker.replicas.manager.ReplicaManager._lead": _lead_without_producers,
    },
    "a repeated batch is appended again": {
        "millrace_broker.log.appendable.AppendableLog._find_duplicate": lambda log, batches: None,
        "millrace_broker.log.producers._check_sequence": lambda entry, header, lowest: None,
    },
    "what is appended counts as synced": {
        "millrace_broker.log.appendable.AppendableLog.durable_end": property(lambda log: log._log_end_offset),
        "millrace_broker.log.partition.PartitionLog.must_sync": lambda log, result: False,
        "millrace_broker.log.partition.PartitionLog.flush": lambda log, up_to=None: None,
    },
    "a marker is left out": {
        f"{_TRANSACTIONS}.shard.write_markers": _write_markers_but_one,
    },
    "aborted transactions are committed": {
        f"{_TRANSACTIONS}.shard.write_markers": _write_commits,
    },
    "open transactions are read": {
        "millrace_broker.api.fetch.end_of": _end_without_stable_offset,
    },
    "producers that were replaced go on": {
        "millrace_broker.log.producers._check_epoch": lambda *_: None,
        f"{_TRANSACTIONS}.coordinator.TransactionCoordinator.verify": _nothing_to_verify,
    },
    "members of an old generation commit": {
        "millrace_broker.groups.group.Group.check_commit": lambda group, identity, now_ms, **_: None,
    },
}
"""What stands where instead, by what is wrong then."""


@contextmanager
def plant(name: str) -> Iterator[None]:
    """Have a fault in the broker for a while."""
    with ExitStack() as stack:
        for target, instead in PLANTED[name].items():
            stack.enter_context(mock.patch(target, instead))
        yield

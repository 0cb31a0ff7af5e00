"""Planted faults for the test of the simulator.

Each fault removes one rule from the broker, and the simulator must notice. ``PLANTED`` has their names, the violations
by which each is noticed, and the seed that found each last. A search begins with that seed. It tries all others if a
change of the broker has made that seed pass. ``plant`` applies a fault during a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from unittest import mock

from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.cluster.process_watch import ProcessWatch
from millrace_broker.controller import elections
from millrace_broker.coordinators import Shards
from millrace_broker.decisions import Leadership
from millrace_broker.log import PartitionLog
from millrace_broker.log.producer_states import ProducerStates
from millrace_broker.replication.core import Follower, Leader, Replica
from millrace_broker.replication.core.leader import LeaderOutcome
from millrace_broker.replication.runtime import HostedReplica, ReplicaManager
from millrace_broker.transactions import markers
from millrace_broker.transactions.metadata import TransactionMarker, TransactionMetadata


class Fault(NamedTuple):
    """A planted fault.

    ``seen_as`` is a regular expression of the expected violation. ``patches`` replace parts of the broker.
    """

    seen_as: str
    patches: Mapping[str, Any]
    """By module, class and name."""
    found_by: int = 1
    """The seed that a search begins with."""


_LACKING: Final = r"the ISR .* has broker-\d, with \d+ of \d+ committed records|ends at \d+, committed is up to \d+"
_ACKNOWLEDGED: Final = r"is acknowledged at \d+, where nothing is committed"
_READ: Final = r"read .* at \d+, where nothing may be read"
_TWICE: Final = r"is committed at \d+, and at"
_HAUNTED: Final = r"a producer that was replaced could write"
_LEFT_OPEN: Final = r"a transaction is still open"
_UNASKED: Final = r"is committed, which nobody has asked for"

_REPLICATION: Final = "millrace_broker.replication.core"
_TRANSACTIONS: Final = "millrace_broker.transactions"
_fetched: Final = Leader.fetched
_CONSUMER_GROUP: Final = "millrace_broker.groups.consumer.consumer_group.ConsumerGroup"


def _fetched_and_forgotten(leader: Leader, follower: int, *fetch: int) -> LeaderOutcome:
    before, after = leader._high_watermark, _fetched(leader, follower, *fetch)
    leader._high_watermark = before
    return replace(after, has_watermark_risen=False)


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
    replica.log._producers.reload(ProducerStates())
    _lead(manager, replica, epoch)


_elect = elections.elect


def _elect_unclean(context: Any, partition: Any, current: Any, occasion: elections.Occasion) -> Any:
    is_offline = occasion is elections.Occasion.OFFLINE
    return _elect(context, partition, current, elections.Occasion.UNCLEAN if is_offline else occasion)


def _elect_any(context: Any, partition: Any, current: Any, occasion: elections.Occasion) -> Any:
    """Elect the first live replica, in sync or not."""
    live = context.online_replicas(partition, context.assignments[partition].replicas)
    return elections.Elected(live[-1], tuple({live[-1], *current.isr}), live) if live else None


_write_markers = markers.write_markers


async def _write_markers_but_one(transport: Any, transaction: TransactionMetadata, coordinator_epoch: int) -> bool:
    some = frozenset(sorted(transaction.partitions)[:-1])
    return await _write_markers(transport, replace(transaction, partitions=some), coordinator_epoch)


async def _write_otherwise(
    commits: Callable[[TransactionMetadata, int], bool],
    transport: Any,
    transaction: TransactionMetadata,
    coordinator_epoch: int,
) -> bool:
    """Write markers with the result of ``commits`` for each partition, by its position in the transaction."""
    for number, partition in enumerate(sorted(transaction.partitions)):
        marker = TransactionMarker(
            producer_id=transaction.producer_id,
            epoch=transaction.epoch,
            committed=commits(transaction, number),
            coordinator_epoch=coordinator_epoch,
            version=transaction.version,
        )
        await markers._write(transport, partition, marker, transaction.transactional_id)
    return True


def _end_without_stable_offset(log: PartitionLog, isolation_level: pb.IsolationLevel.ValueType) -> int:
    return log.high_watermark


def _decided_in_the_same_epoch(leadership: Leadership, controller_epoch: int, *, leader: int, isr: Any) -> Leadership:
    return replace(leadership, leader=leader, isr=tuple(isr), controller_epoch=controller_epoch)


async def _nothing_to_verify(*_: Any, **__: Any) -> None:
    """Skip the verification of a producer's transaction."""


_decided = Replica.decided


def _decided_whenever(replica: Replica, decision: Any, log: Any, now_ms: int) -> Any:
    replica._leader_epoch = -1
    return _decided(replica, decision, log, now_ms)


async def _watch_by_calls(watch: ProcessWatch, broker_id: int) -> None:
    """Take a broker that does not answer for one whose process has ended."""
    peers: Any = watch._connections
    while True:
        try:
            await peers.call(broker_id, "ApiVersions", pb.ApiVersionsRequest(), timeout_s=0.3)
        except MillraceError:
            await watch._lost(broker_id)
        await asyncio.sleep(0.3)


async def _go_on_leading(manager: ReplicaManager) -> None:
    """Lead until a controller elects another broker."""


async def _refused_without_proof(watch: ProcessWatch, broker_id: int) -> bool:
    return True


PLANTED: Final[Mapping[str, Fault]] = {
    "the high watermark is the leader's own log end": Fault(
        _LACKING,
        {
            f"{_REPLICATION}.leader.Leader._raise_watermark": _watermark_at_own_end,
        },
    ),
    "the high watermark waits for the next record": Fault(
        r"the high watermark is \d+ of \d+",
        {
            f"{_REPLICATION}.leader.Leader.fetched": _fetched_and_forgotten,
        },
    ),
    "records are acknowledged before the ISR has them": Fault(
        _ACKNOWLEDGED,
        {
            f"{_REPLICATION}.leader.Leader.is_acknowledged": lambda leader, end_offset: True,
        },
    ),
    "a follower joins the ISR below the high watermark": Fault(
        _LACKING,
        {
            f"{_REPLICATION}.leader.Leader._may_join": _joins_when_alive,
        },
    ),
    "followers truncate to the high watermark, not by epochs": Fault(
        _LACKING,
        {
            f"{_REPLICATION}.follower.Follower.begin": _truncated_to_watermark,
        },
    ),
    "a replica about to leave the ISR is not waited for": Fault(
        _LACKING,
        {
            f"{_REPLICATION}.leader.Leader.maximal_isr": property(lambda leader: leader._isr - set(leader._followers)),
            f"{_REPLICATION}.leader.Leader._is_near": lambda leader, follower, now_ms: False,
        },
    ),
    "unclean elections": Fault(
        f"{_LACKING}|are not what was committed",
        {
            "millrace_broker.controller.partition_states.elect": _elect_unclean,
        },
    ),
    "any live replica is elected, and the old ISR stays": Fault(
        _LACKING,
        {
            "millrace_broker.controller.partition_states.elect": _elect_any,
        },
    ),
    "a new leader in the old epoch": Fault(
        # The simulator notices two leaders of one epoch, or their different committed records.
        r"broker-\d leads in epoch \d+ as well|are not what was committed",
        {
            "millrace_broker.decisions.model.Leadership.decided_anew": _decided_in_the_same_epoch,
            # Otherwise brokers ignore requests of a known epoch, and the partition has no leader.
            f"{_REPLICATION}.partition.Replica.decided": _decided_whenever,
        },
        found_by=2,
    ),
    "a decision of an older epoch is applied": Fault(
        r"the leader epoch went back",
        {
            f"{_REPLICATION}.partition.Replica.decided": _decided_whenever,
            "millrace_broker.cluster.member.check_controller_epoch": lambda known, requested: None,
            "millrace_broker.replication.runtime.manager.check_controller_epoch": lambda known, requested: None,
        },
        found_by=2,
    ),
    "a new leader forgets producers": Fault(
        f"{_READ}|is forgotten|{_TWICE}",
        {
            "millrace_broker.replication.runtime.manager.ReplicaManager._lead": _lead_without_producers,
        },
    ),
    "a repeated batch is appended again": Fault(
        _TWICE,
        {
            "millrace_broker.log.leader_appender.LeaderAppender._find_duplicate": lambda appender, batches: None,
            "millrace_broker.log.producer_states._check_sequence": lambda entry, header, lowest: None,
        },
        found_by=6,
    ),
    "unsynced records count as synced": Fault(
        _LACKING,
        {
            "millrace_broker.log.log_offsets.LogOffsets.durable_end": property(lambda offsets: offsets.end),
            "millrace_broker.log.partition_log.PartitionLog.must_sync": lambda log, result: False,
            "millrace_broker.log.partition_log.PartitionLog.flush": lambda log, up_to=None: None,
        },
        found_by=6,
    ),
    "a marker is left out": Fault(
        f"{_HAUNTED}|{_LEFT_OPEN}|{_UNASKED}|is aborted, and was acknowledged as committed",
        {
            f"{_TRANSACTIONS}.shard.write_markers": _write_markers_but_one,
        },
    ),
    "aborted transactions are committed": Fault(
        _UNASKED,
        {
            f"{_TRANSACTIONS}.shard.write_markers": partial(_write_otherwise, lambda transaction, number: True),
        },
    ),
    "committed transactions are aborted in some partitions": Fault(
        r"is torn: |is aborted, and was acknowledged as committed",
        {
            f"{_TRANSACTIONS}.shard.write_markers": partial(
                _write_otherwise, lambda transaction, number: transaction.is_committed and number == 0
            ),
        },
    ),
    "open transactions are read": Fault(
        _READ,
        {
            "millrace_broker.api.fetch.end_of": _end_without_stable_offset,
        },
    ),
    "fenced producers continue": Fault(
        f"{_HAUNTED}|{_TWICE}|{_LEFT_OPEN}|{_UNASKED}",
        {
            "millrace_broker.log.producer_states._check_epoch": lambda *_: None,
            f"{_TRANSACTIONS}.coordinator.TransactionCoordinator.verify": _nothing_to_verify,
        },
        found_by=6,
    ),
    "a broker that does not answer counts as dead": Fault(
        r"lives and accepts connections, and was taken for dead",
        {
            "millrace_broker.cluster.process_watch.ProcessWatch._watch": _watch_by_calls,
            "millrace_broker.cluster.process_watch.ProcessWatch.is_refused": _refused_without_proof,
        },
    ),
    "a live broker that was taken for dead does not register again": Fault(
        r"this still does not hold: ",
        {
            "millrace_broker.cluster.own_registration.OwnRegistration._changed": lambda own, event: None,
        },
        found_by=3,
    ),
    "a live broker that was taken for dead continues to lead": Fault(
        r"was taken for dead, has registered again, and goes on leading",
        {
            "millrace_broker.replication.runtime.manager.ReplicaManager.fence": _go_on_leading,
        },
        found_by=6,
    ),
    "parked calls keep their places": Fault(
        r"this still does not hold: |not all of its partitions have leaders yet",
        {
            "millrace_broker.quotas.admission.AdmittedCall.park": lambda call, give_up: None,
        },
        found_by=5,
    ),
    "completed parked calls are never removed": Fault(
        r"this still does not hold: what clients' calls held is given back",
        {
            "millrace_broker.quotas.parked_calls.ParkedCalls.release": lambda parked, key: None,
        },
    ),
    "members of an old generation commit": Fault(
        r"a group's offset went back",
        {
            "millrace_broker.groups.classic_group.ClassicGroup.check_commit": lambda group, identity, now_ms, **_: None,
        },
        found_by=7,
    ),
    "offsets are read from a coordinator that has been replaced": Fault(
        r"a group's offset went back",
        {
            "millrace_broker.coordinators.shards.Shards.shard_to_read": Shards.wait_for_shard,
        },
        found_by=820_124_593,
    ),
    "partitions are given to members before others have revoked them": Fault(
        r"gets Place.*, which consumer-\d owns, whose session has",
        {
            f"{_CONSUMER_GROUP}.is_free": lambda group, partition, member_id: True,
        },
        found_by=9,
    ),
    "members that were removed commit": Fault(
        r"consumer-\d: Place.* is committed at \d+, after \d+",
        {
            f"{_CONSUMER_GROUP}.check_commit": lambda group, identity, **_: None,
        },
        found_by=24,
    ),
}
"""The planted faults by name. The name states the wrong behaviour."""


@contextmanager
def plant(name: str) -> Iterator[None]:
    """Apply a fault to the broker within the context."""
    with ExitStack() as stack:
        for target, instead in PLANTED[name].patches.items():
            stack.enter_context(mock.patch(target, instead))
        yield

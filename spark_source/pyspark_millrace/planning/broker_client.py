"""The source's broker client: topics, schemas, offsets, extents and records.

No other module of ``planning`` calls a broker; the others decide over frozen data.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from millrace.clients import Admin, SchemaCache, TopicPartition
from millrace.errors import (
    InconsistentTopicIdError,
    InvalidConfigError,
    MillraceError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from pyspark_millrace.kept_clients import KeptClients
from pyspark_millrace.options.positions import AtTimestamp, ExactOffsets, OffsetSpec, Position
from pyspark_millrace.options.source import (
    AssignedPartitions,
    IsolationLevel,
    NoMatch,
    SourceOptions,
    Subscription,
    TopicPattern,
)
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.data_loss import LossReport, clip_to_log, gone, recreated, truncated, why_removed
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import Extent, PlannedSplit
from pyspark_millrace.planning.topics import TopicSet, check_same_schemas

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.clients import OffsetAndTimestamp, PayloadRegistry, TopicDescription
    from millrace.clients.model import LocatedExtent
    from millrace.records import AbortedTransaction

_log = logging.getLogger(__name__)

_PARALLEL_CALLS: Final = 8
_NOT_THERE: Final = (
    OffsetOutOfRangeError,
    InconsistentTopicIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
_EDGE_WORDS: Final = {OffsetSpec.EARLIEST: "earliest", OffsetSpec.LATEST: "latest"}


class BrokerClient:
    """Connection to the brokers for one query. Thread safe.

    With ``read_committed`` it sees offsets up to the last stable offset only. So every transaction in a planned range
    is committed or aborted, and the plan contains the aborted transactions.
    """

    def __init__(
        self,
        client_config: Mapping[str, str],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        *,
        retries: int = 0,
        retry_interval_ms: int = 0,
    ) -> None:
        try:
            self._admin = Admin(client_config)
        except InvalidConfigError as error:
            raise UsageError(f"in the kafka.* options: {error.message}") from None
        self._schema_cache = SchemaCache(client_config)
        self._schemas: dict[int, pa.Schema] = {}
        self._isolation_level = isolation_level
        self._retries = retries
        self._retry_interval_s = retry_interval_ms / 1000

    @classmethod
    def connect(cls, options: SourceOptions) -> Self:
        """Connect with the options' servers and ``kafka.*`` settings; raises ``UsageError`` for a wrong setting."""
        settings = {**options.client_config, "bootstrap.servers": options.bootstrap_servers}
        return cls(
            settings,
            options.isolation_level,
            retries=options.fetch_offset_retries,
            retry_interval_ms=options.fetch_offset_retry_interval_ms,
        )

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()
        self._schema_cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def commit(self, group_id: str, next_offsets: Mapping[PartitionKey, int]) -> None:
        """Commit offsets for a group without members.

        Raises ``UnknownMemberError`` if the group has members, and other errors of the group coordinator.
        """
        self._admin.alter_group_offsets(
            group_id, {TopicPartition(key.topic, key.partition): offset for key, offset in next_offsets.items()}
        )

    @cached_property
    def cluster_id(self) -> str:
        """Id of the Kafka cluster."""
        return self._admin.describe_cluster().cluster_id

    # --- topics ----------------------------------------------------------------------------------------------

    def resolve(self, subscription: Subscription) -> TopicSet:
        """Find the topics of a new query.

        Raises ``UnknownTopicOrPartitionError`` for a missing topic, and ``UsageError`` for a pattern without a match or
        for topics whose schemas differ.
        """
        found, missing = self.find(subscription)
        if missing:
            raise UnknownTopicOrPartitionError(
                f"{', '.join(missing)}: no such topic or partition; create it first, or correct the options"
            )
        if not found.topic_ids:
            raise UsageError(f"subscribePattern={getattr(subscription, 'pattern', '')!r} matches no topic")
        check_same_schemas(found)
        return found

    def find(self, subscription: Subscription) -> tuple[TopicSet, list[str]]:
        """Find the current topics of a subscription, and the names of missing ones."""
        topics: list[TopicDescription] = []
        missing: list[str] = []
        if isinstance(subscription, TopicPattern):
            pattern = re.compile(subscription.pattern)
            topics = [topic for topic in self._admin.list_topics() if pattern.fullmatch(topic.name) is not None]
        else:
            if isinstance(subscription, AssignedPartitions):
                names = list(dict.fromkeys(key.topic for key in subscription.partitions))
            else:
                names = list(subscription.names)
            there = self._admin.find_topics(names)
            topics = [there[name] for name in names if name in there]
            missing = [f"topic {name}" for name in names if name not in there]
        partitions = [
            PartitionKey(topic.name, partition.partition) for topic in topics for partition in topic.partitions
        ]
        if isinstance(subscription, AssignedPartitions):
            known = {topic.name for topic in topics}
            absent = sorted(set(subscription.partitions) - set(partitions))
            missing += [f"partition {key}" for key in absent if key.topic in known]
            partitions = sorted(set(subscription.partitions) & set(partitions))
        found = TopicSet(
            topic_ids={topic.name: topic.topic_id for topic in topics},
            partitions=tuple(sorted(partitions)),
            schema_ids=frozenset(topic.schema_id for topic in topics),
            schemas={topic.name: topic.read_schema for topic in topics},
        )
        return found, missing

    def schemas(self, topics: TopicSet) -> dict[int, pa.Schema]:
        """Return all schema versions of typed topics by id. New versions are fetched when a topic has one."""
        if topics.schema is not None and not topics.schema_ids <= self._schemas.keys():
            for name in topics.topic_ids:
                self._schemas.update((version.id, version.schema) for version in self._admin.topic_schemas(name))
        return dict(self._schemas)

    def describe(self, topic: str) -> TopicDescription:
        """Describe a topic; raises ``UnknownTopicOrPartitionError``."""
        return self._admin.describe_topic(topic)

    def settings(self, topic: str) -> dict[str, str]:
        """Return the configuration of a topic, defaults included."""
        return {name: config.value for name, config in self._admin.describe_configs(topic).items()}

    def payload_registry(self) -> PayloadRegistry:
        """Return the current schemas of payloads in the registry."""
        return self._admin.payload_registry()

    def schema_of(self, schema_id: int) -> pa.Schema:
        """Return a schema by id that was unknown when the query was planned."""
        return self._schema_cache.schema_of(schema_id)

    # --- offsets ---------------------------------------------------------------------------------------------

    def edge(self, partitions: Iterable[PartitionKey], edge: OffsetSpec) -> dict[PartitionKey, int]:
        """Return the earliest or latest offsets of partitions."""
        wanted = {TopicPartition(*key): _EDGE_WORDS[edge] for key in partitions}
        found = self._list_offsets(wanted, self._isolation_level)
        return {PartitionKey(*partition): at.offset for partition, at in found.items()}

    def latest(self, partitions: Iterable[PartitionKey]) -> tuple[dict[PartitionKey, int], dict[PartitionKey, int]]:
        """Return the latest offsets of partitions, and their leader epochs as far as known."""
        wanted = dict.fromkeys((TopicPartition(*key) for key in partitions), "latest")
        found = {
            PartitionKey(*partition): at for partition, at in self._list_offsets(wanted, self._isolation_level).items()
        }
        epochs = {key: at.leader_epoch for key, at in found.items() if at.leader_epoch >= 0}
        return {key: at.offset for key, at in found.items()}, epochs

    def epoch_ends(self, epochs: Mapping[PartitionKey, int]) -> dict[PartitionKey, int | None]:
        """Return the end offsets of leader epochs in the logs of partitions; None if unknown."""
        found = self._admin.epoch_ends({TopicPartition(*key): epoch for key, epoch in epochs.items()}) if epochs else {}
        return {PartitionKey(*partition): end for partition, end in found.items()}

    def await_leader_epochs(self, epochs: Mapping[PartitionKey, int]) -> None:
        """Wait until the brokers name leaders of at least these epochs; return after a time-out in any case."""
        self._admin.await_leader_epochs({TopicPartition(*key): epoch for key, epoch in epochs.items()})

    def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the high watermarks of partitions, for any isolation level."""
        wanted = dict.fromkeys((TopicPartition(*key) for key in partitions), "latest")
        found = self._list_offsets(wanted, IsolationLevel.READ_UNCOMMITTED)
        return {PartitionKey(*partition): at.offset for partition, at in found.items()}

    def offsets_at(
        self, position: Position, partitions: Sequence[PartitionKey], *, option: str, no_match: NoMatch | None
    ) -> dict[PartitionKey, int]:
        """Resolve a position to an offset for each partition.

        ``no_match`` is the result of a timestamp after a partition's last record. ``option`` is the option's name for
        messages. Raises ``UsageError`` if a position names other partitions than those that are read.
        """
        if isinstance(position, OffsetSpec):
            return self.edge(partitions, position)
        if isinstance(position, AtTimestamp):
            times = dict.fromkeys(partitions, position.timestamp_ms)
            return self._offsets_at_times(times, option.replace("Offsets", "Timestamp"), no_match)
        if not isinstance(position, ExactOffsets):
            _check_covers(position.by_partition, partitions, f"{option}ByTimestamp")
            return self._offsets_at_times(position.by_partition, f"{option}ByTimestamp", no_match)
        _check_covers(position.by_partition, partitions, option, " (-2 earliest, -1 latest)")
        offsets = dict(position.by_partition)
        if option == "startingOffsets":
            self._check_not_beyond(offsets, option)
        for edge in OffsetSpec:
            at_edge = [key for key, offset in offsets.items() if offset == edge]
            offsets |= self.edge(at_edge, edge) if at_edge else {}
        return offsets

    def _list_offsets(
        self, wanted: Mapping[TopicPartition, str | int], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """List offsets, with ``fetchOffset.numRetries`` more attempts after the client gave up."""
        tries_left = self._retries
        while True:
            try:
                return self._admin.list_offsets(wanted, isolation_level=isolation_level)
            except MillraceError as error:
                if not error.retriable or tries_left == 0:
                    raise
                _log.warning("the offset look-up failed: %s; retrying", error.message)
            tries_left -= 1
            time.sleep(self._retry_interval_s)

    def _check_not_beyond(self, offsets: Mapping[PartitionKey, int], option: str) -> None:
        ends = self.log_ends(offsets)
        if beyond := [
            f"{key} {offset} (the end is {ends[key]})" for key, offset in offsets.items() if offset > ends[key]
        ]:
            raise UsageError(
                f"{option}: these offsets are beyond the end of the log: {', '.join(beyond)}: give at most the "
                "end, or -1 for latest"
            )

    def first_offsets_from(self, times_ms: Mapping[PartitionKey, int]) -> dict[PartitionKey, int | None]:
        """Return the offset of the first record at or after a time in each partition; None if there is none."""
        wanted = {TopicPartition(*key): time for key, time in times_ms.items()}
        found = self._list_offsets(wanted, self._isolation_level) if wanted else {}
        return {PartitionKey(*partition): at.offset if at.offset >= 0 else None for partition, at in found.items()}

    def _offsets_at_times(
        self, times: Mapping[PartitionKey, int], option: str, no_match: NoMatch | None
    ) -> dict[PartitionKey, int]:
        wanted = {TopicPartition(*key): time for key, time in times.items()}
        found = self._list_offsets(wanted, self._isolation_level)
        offsets = {PartitionKey(*partition): at.offset for partition, at in found.items()}
        beyond = [key for key, offset in offsets.items() if offset < 0]
        if beyond and no_match is NoMatch.ERROR:
            raise UsageError(
                f"{option}: {', '.join(map(str, beyond))} has no record at or after {times[beyond[0]]}: give an "
                "earlier time, or set startingOffsetsByTimestampStrategy=latest"
            )
        return offsets | (self.edge(beyond, OffsetSpec.LATEST) if beyond else {})

    # --- extents ---------------------------------------------------------------------------------------------

    def locate(
        self, ranges: Sequence[tuple[OffsetRange, int]], report: LossReport
    ) -> list[tuple[OffsetRange, tuple[Extent, ...]]]:
        """Locate the extents of ranges, each cut to about its number of bytes (0: whole segments).

        Lost records are reported, and the returned ranges leave them out.
        """
        if len(ranges) <= 1:
            return [self._locate_one(wanted, report, split_bytes) for wanted, split_bytes in ranges]
        with ThreadPoolExecutor(min(len(ranges), _PARALLEL_CALLS), thread_name_prefix="locate") as pool:
            return list(pool.map(lambda piece: self._locate_one(piece[0], report, piece[1]), ranges))

    def _locate_one(
        self, wanted: OffsetRange, report: LossReport, split_bytes: int
    ) -> tuple[OffsetRange, tuple[Extent, ...]]:
        topic, partition = wanted.key
        if wanted.start > wanted.end:
            report.add(truncated(wanted.key, wanted.start, wanted.end))
        while wanted.count:
            try:
                located = self._admin.locate_range(
                    topic,
                    partition,
                    wanted.start,
                    wanted.end,
                    split_bytes=split_bytes,
                    topic_id=wanted.topic_id,
                    isolation_level=self._isolation_level,
                )
            except _NOT_THERE:
                clipped = self._clipped(wanted, report)
                if clipped == wanted:
                    raise
                wanted = clipped
                continue
            if located.high_watermark < wanted.end:
                wanted = clip_to_log(wanted, located.log_start_offset, located.high_watermark, report)
            return wanted, tuple(
                Extent(
                    start_offset=extent.start_offset,
                    end_offset=extent.end_offset,
                    start_position=extent.start_position,
                    end_position=extent.end_position,
                    path=extent.path,
                    uri=extent.uri,
                    aborted=_reaching_into(extent, located.aborted_transactions),
                )
                for extent in located.extents
            )
        return wanted, ()

    def _clipped(self, wanted: OffsetRange, report: LossReport) -> OffsetRange:
        """Return the remainder of a range that the broker cannot locate; empty if the topic was deleted or
        recreated.
        """
        nothing = OffsetRange(wanted.key, wanted.topic_id, wanted.end, wanted.end)
        try:
            topic = self._admin.describe_topic(wanted.key.topic)
        except UnknownTopicOrPartitionError:
            lost = f"offsets {wanted.start}..{wanted.end - 1} of {wanted.key} are lost"
            report.add(gone([f"topic {wanted.key.topic}"], lost))
            return nothing
        if topic.topic_id != wanted.topic_id:
            lost = f"offsets {wanted.start}..{wanted.end - 1} of {wanted.key}"
            report.add(recreated(topic.name, wanted.topic_id, topic.topic_id, lost))
            return nothing
        first, last = self.edge([wanted.key], OffsetSpec.EARLIEST), self.edge([wanted.key], OffsetSpec.LATEST)
        self._check_decided(wanted, last[wanted.key])
        why = ""
        if wanted.start < first[wanted.key]:
            why = why_removed(self.settings(topic.name))
        return clip_to_log(wanted, first[wanted.key], last[wanted.key], report, why=why)

    def _check_decided(self, wanted: OffsetRange, stable_offset: int) -> None:
        """Raise ``UsageError`` if a range exists but reaches beyond the first open transaction."""
        if self._isolation_level is IsolationLevel.READ_UNCOMMITTED or wanted.end <= stable_offset:
            return
        if wanted.end <= self.log_ends([wanted.key])[wanted.key]:
            raise UsageError(
                f"offset {stable_offset} of {wanted.key} belongs to a transaction that is still open, so that "
                f"{wanted.end - 1} cannot be read: end at {stable_offset}, wait until it has been ended, or set "
                "isolation.level=read_uncommitted"
            )

    def read_range(self, split: PlannedSplit, start: int, end: int) -> Iterator[bytes]:
        """Stream the batches of a range from the broker."""
        topic, partition = split.range.key
        return self._admin.read_range(topic, partition, start, end, topic_id=split.range.topic_id)

    def log_start(self, split: PlannedSplit) -> int:
        """Return the first retained offset of a split's partition, or the split's end if the topic was deleted or
        recreated.
        """
        try:
            if self._admin.describe_topic(split.range.key.topic).topic_id == split.range.topic_id:
                return self.edge([split.range.key], OffsetSpec.EARLIEST)[split.range.key]
        except UnknownTopicOrPartitionError:
            pass
        return split.range.end


BROKER_CLIENTS: Final[KeptClients[tuple[str, tuple[tuple[str, str], ...]], BrokerClient]] = KeptClients(
    lambda key: BrokerClient({**dict(key[1]), "bootstrap.servers": key[0]}), kept_max=8
)
"""Connections shared by the tasks of one worker process, by bootstrap servers and client settings."""


def _reaching_into(extent: LocatedExtent, aborted: Iterable[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    return tuple(
        each for each in aborted if each.first_offset < extent.end_offset and each.last_offset >= extent.start_offset
    )


def _check_covers(
    named: Mapping[PartitionKey, int], partitions: Sequence[PartitionKey], option: str, values: str = ""
) -> None:
    missing, extra = sorted(set(partitions) - set(named)), sorted(set(named) - set(partitions))
    if missing or extra:
        problems = [f"without {key}" for key in missing] + [f"with {key}, which is not read" for key in extra]
        raise UsageError(f"{option} is {', '.join(problems)}: name all partitions that are read, no other{values}")

"""Driver of the commit queue, and lookup of committed offsets.

Calls complete in other threads, which only note the response and send the next commit. Callbacks run in the caller's
thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.grouped_by_topic import topic_commits, topic_partitions
from millrace.clients.membership.commit_queue import Commit, CommitQueue
from millrace.clients.membership.coordinator import Coordinator, check_topic_errors
from millrace.clients.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from millrace.clients.signal import Signal
from millrace.clients.transport import unary
from millrace.errors import (
    BrokerUnavailableError,
    CommitFailedError,
    IllegalGenerationError,
    MillraceError,
    RequestTimedOutError,
    UnknownMemberError,
    WakeupError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item

_OFFSET_COMMIT: Final = unary(lambda stub: stub.OffsetCommit)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, MillraceError | None], None]


class Commits:
    """Commits of one consumer. ``refused`` is called with (error, committing member) when the group refuses one."""

    def __init__(
        self,
        connections: Connections,
        coordinator: Coordinator,
        signal: Signal,
        refused: Callable[[MillraceError, ConsumerGroupMetadata], None],
    ) -> None:
        self._connections = connections
        self._coordinator = coordinator
        self._signal = signal
        self._refused = refused
        config = connections.config
        self._lock = threading.Lock()
        self._queue = CommitQueue(
            backoff_s=config.retry_backoff_ms / 1000, backoff_max_s=config.retry_backoff_max_ms / 1000
        )
        self._callbacks: dict[int, OnCommit] = {}
        self._done: deque[tuple[Commit, MillraceError | None]] = deque()

    # --- committing -----------------------------------------------------------------------------------------------

    def commit_async(self, offsets: Offsets, who: ConsumerGroupMetadata, on_done: OnCommit) -> None:
        """Commit without waiting; ``on_done`` is called by a later ``call_back``."""
        self._submit(Commit(offsets=dict(offsets), who=who), on_done)

    def commit(self, offsets: Offsets, who: ConsumerGroupMetadata, timeout_s: float) -> None:
        """Commit after all earlier commits, and wait. Raises ``CommitFailedError`` and the brokers' errors."""
        deadline = time.monotonic() + timeout_s
        outcome: list[MillraceError | None] = []
        commit = Commit(offsets=dict(offsets), who=who, deadline=deadline)
        self._submit(commit, lambda _, error: outcome.append(error))
        try:
            while not outcome:
                serial = self._signal.serial
                self.call_back()
                if outcome:
                    break
                now = time.monotonic()
                if now > deadline and self._queue.under_way is not commit:
                    raise RequestTimedOutError(f"offsets were not committed within {timeout_s:.0f} s: commit again")
                self._signal.wait(serial, self._next_wait_s(now, deadline))
        except BaseException:
            with self._lock:
                self._queue = self._queue.withdrawn(commit)
                self._callbacks.pop(id(commit), None)
            raise
        if outcome[0] is not None:
            raise outcome[0]

    def _next_wait_s(self, now: float, deadline: float) -> float:
        queue = self._queue
        if queue.under_way is None and queue.waiting:
            return max(min(queue.retry_at, deadline) - now, 0.001)
        return max(deadline - now, 0.05)

    def _submit(self, commit: Commit, on_done: OnCommit) -> None:
        with self._lock:
            self._callbacks[id(commit)] = on_done
            self._queue = self._queue.submitted(commit)
        self._send_next()

    def call_back(self) -> None:
        """Send the next commit, and call the callbacks of completed ones, in the caller's thread."""
        self._send_next()
        while self._done:
            commit, error = self._done.popleft()
            callback = self._callbacks.pop(id(commit), None)
            if callback is not None:
                callback(commit.offsets, error)

    @property
    def is_idle(self) -> bool:
        """True if no commit waits or is in flight."""
        return self._queue.is_idle

    def _send_next(self) -> None:
        with self._lock:
            self._queue, commit = self._queue.request(time.monotonic())
        if commit is None:
            return
        try:
            address = self._coordinator.address(_ms_left(commit))
            timeout_ms = self._connections.config.request_timeout_ms
            timeout_s = min(timeout_ms, _ms_left(commit) or timeout_ms) / 1000
            self._connections.begin(
                _OFFSET_COMMIT,
                _commit_request(commit),
                address=address,
                timeout_s=timeout_s,
                on_done=lambda response, error: self._on_done(commit, response, error),
            )
        except WakeupError:
            self._postpone(commit)
            self._signal.wakeup()  # it takes effect at the next wait
        except MillraceError as error:
            self._answered(commit, error)
        except BaseException:  # an interrupt: a later call sends it
            self._postpone(commit)
            raise

    def _postpone(self, commit: Commit) -> None:
        with self._lock:
            self._queue = self._queue.postponed(commit)

    def _on_done(self, commit: Commit, response: pb.OffsetCommitResponse | None, error: MillraceError | None) -> None:
        if response is not None:
            try:
                check_topic_errors(response.topics)
            except MillraceError as refusal:
                error = refusal
        self._answered(commit, error)
        # The caller's thread looks up an unknown coordinator: here, a lookup would wait for its own response.
        if self._coordinator.is_known and not self._connections.is_closed:
            self._send_next()

    def _answered(self, commit: Commit, error: MillraceError | None) -> None:
        if error is not None:
            self._coordinator.notice(error)
            self._refused(error, commit.who)
        with self._lock:
            if self._queue.under_way is not commit:
                return  # the commit was abandoned meanwhile
            self._queue, is_over = self._queue.answered(error, time.monotonic())
        if is_over:
            if isinstance(error, (UnknownMemberError, IllegalGenerationError)):
                error = commit_failed(error.message)
            self._done.append((commit, error))
        self._signal.ring()

    def close(self) -> None:
        """Give up all commits; ``call_back`` reports it."""
        with self._lock:
            queue, self._queue = self._queue, CommitQueue()
        left = [each for each in (queue.under_way, *queue.waiting) if each is not None]
        error = BrokerUnavailableError("the commit was abandoned, because the consumer was closed")
        self._done.extend((commit, error) for commit in left)

    # --- looking up -----------------------------------------------------------------------------------------------

    def committed(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets of these partitions, without partitions that have none."""
        return fetch_committed(self._coordinator, partitions, require_stable=require_stable, timeout_ms=timeout_ms)


def fetch_committed(
    coordinator: Coordinator,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Fetch the committed offsets of the coordinator's group, of some partitions or (``None``) of all.

    Raises the first error.
    """
    entries = fetch_entries(coordinator, partitions, require_stable=require_stable, timeout_ms=timeout_ms)
    return {
        partition: OffsetAndMetadata(
            offset=entry.committed.offset,
            metadata=entry.committed.metadata,
            leader_epoch=entry.committed.leader_epoch,
        )
        for partition, entry in entries.items()
    }


def fetch_entries(
    coordinator: Coordinator,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, pb.OffsetFetchResponse.PartitionOffset]:
    """Fetch the same as ``fetch_committed``, with the time of each commit."""
    topics = None if partitions is None else topic_partitions(partitions)
    group = pb.OffsetFetchRequest.Group(group_id=coordinator.group_id, topics=topics or (), all_topics=topics is None)
    request = pb.OffsetFetchRequest(groups=[group], require_stable=require_stable)
    response = coordinator.call(
        lambda stub: stub.OffsetFetch, request, check=_check_offset_fetch, timeout_ms=timeout_ms
    )
    return {
        TopicPartition(topic.name, entry.committed.partition): entry
        for topic in response.groups[0].topics
        for entry in topic.partitions
        if entry.committed.offset >= 0
    }


def _check_offset_fetch(response: pb.OffsetFetchResponse) -> None:
    for group in response.groups:
        check_item(group.error)
        for topic in group.topics:
            for entry in topic.partitions:
                check_item(entry.error, f"{topic.name}-{entry.committed.partition}")


def _ms_left(commit: Commit) -> int | None:
    return None if commit.deadline is None else max(int((commit.deadline - time.monotonic()) * 1000), 1)


def _commit_request(commit: Commit) -> pb.OffsetCommitRequest:
    return pb.OffsetCommitRequest(
        group_id=commit.who.group_id,
        generation_id=commit.who.generation_id,
        member_id=commit.who.member_id,
        group_instance_id=commit.who.group_instance_id,
        topics=topic_commits(commit.offsets),
    )


def commit_failed(reason: str) -> CommitFailedError:
    """Build the error of a commit by a member that is no longer in the group."""
    return CommitFailedError(
        "offsets were not committed, because the group has rebalanced without this member and other members "
        f"may read its partitions ({reason}): poll to join again; if polls were too far apart, raise "
        "max.poll.interval.ms or lower max.poll.records"
    )

"""Sender of batches (Kafka's ``Sender``), with retries until ``delivery.timeout.ms``.

Invariants:

- At most one batch of each partition is in flight, the head of its queue. Therefore retries keep the order of the
  queue in the log, with or without idempotence.
- A batch keeps its first sequence number for all retries (``identity``).
- A transaction's batches are sent to a partition only after the coordinator has added the partition.
- Every queued batch is completed exactly once, with its metadata or with an error. Batches of a partition complete in
  the order of the queue, each before the next is sent. The halves of a batch that is too large take its place.
- A batch is completed by its deadline, if necessary before its request ends. Its answer is then ignored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from millrace.clients.backoff import backoff_s
from millrace.clients.connections import Connections
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import BatchMetadata, ProducerStatistics, TopicDescription, TopicPartition
from millrace.clients.producing.adaptive import QueueState
from millrace.clients.producing.batching import BuiltBatch
from millrace.clients.producing.futures import Outcomes
from millrace.clients.producing.identity import Identity
from millrace.clients.producing.outgoing import Completion, Counts, Outgoing, Outstanding, partition_error
from millrace.clients.producing.queues import Queues
from millrace.clients.producing.transactions import Transactions
from millrace.clients.producing.wire import encode_produce_request, stamped_parts
from millrace.clients.transport import PRODUCE
from millrace.config.client import Acks, ProducerConfig
from millrace.errors import (
    ClientClosedError,
    ConcurrentTransactionsError,
    DuplicateSequenceError,
    MillraceError,
    UnknownServerError,
    UsageError,
)
from millrace.interrupts import Uninterrupted
from millrace.protocol import millrace_pb2 as pb

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
_REQUEST_BYTES: Final = 2**20
"""Maximum size of a request with batches of several partitions. Larger ones would be answered all at once."""
_CONCURRENT_WAIT_S: Final = 0.02
"""Retry interval while the previous transaction ends, which takes milliseconds."""


class Sender:
    """Queues of batches and the thread that sends them."""

    def __init__(
        self,
        config: ProducerConfig,
        connections: Connections,
        metadata: MetadataCache,
        condition: Outcomes,
        transactions: Transactions | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._connections = connections
        self._metadata = metadata
        self._condition = condition
        self._lock = condition.lock
        self._transactions = transactions
        self._monotonic = monotonic
        # Separate from the condition of threads that wait for outcomes, which would wake this thread at each outcome.
        self._bell = threading.Condition(threading.Lock())
        self._work: Callable[[], float | None] = lambda: None
        self._has_records: Callable[[], bool] = lambda: False
        self._queues = Queues()
        self._outstanding = Outstanding()
        self._counts = Counts()
        self._requests_in_flight: dict[str, int] = {}
        self._silent_since: dict[str, float] = {}
        """Time of the first unanswered request to an address since its last response."""
        self._identity = Identity(config, connections, transactions)
        self._wanted_topics: set[str] = set()
        self._calling: set[int] = set()
        self._passing = threading.Lock()
        self._passing_thread: int | None = None
        self._woken = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="millrace-producer", daemon=True)

    def start(self, work: Callable[[], float | None], has_records: Callable[[], bool]) -> None:
        """Start the thread, which calls ``work`` before each look at the queues.

        ``work`` returns the seconds until its next call, or ``None`` if it needs none. ``has_records`` returns
        whether ``work`` may have something to do after a response.
        """
        self._work, self._has_records = work, has_records
        self._thread.start()

    # --- called by the producer ------------------------------------------------------------------------------

    def enqueue(self, topic: str, batch: BuiltBatch, completion: Completion, *, created: float | None = None) -> None:
        """Queue a batch behind those of its partition; ``completion`` is called from other threads.

        ``created`` is the time of the sender's clock at which ``delivery.timeout.ms`` began, now by default.
        """
        partition = TopicPartition(topic, batch.partition)
        deadline = (self._monotonic() if created is None else created) + self._config.delivery_timeout_ms / 1000
        with Uninterrupted():
            with self._lock:
                if self._stopping:
                    raise ClientClosedError("the producer is closed: make a new one")
                outgoing = Outgoing(batch, partition, completion, deadline, self._outstanding.add())
                self._queues[partition].waiting.append(outgoing)
            if threading.get_ident() != self._passing_thread:  # that thread looks at the queues next
                self.wake()

    def send_at_once(self, topic: str, work: Callable[[], None]) -> bool:
        """Run ``work``, which queues batches of a topic, and send them in this thread, without waking another.

        Returns False, possibly after a part of the work, if a batch is in flight or the send would have to wait.
        """
        if self._transactions is not None or self._outstanding:
            return False
        with Uninterrupted():
            if not self._passing.acquire(blocking=False):
                return False
            try:
                is_known = self._identity.is_known and self._metadata.known(topic) is not None
                if self._stopping or self._outstanding or not is_known:
                    return False
                self._pass(work)
            finally:
                self._passing_thread = None
                self._passing.release()
            with self._lock:
                return not any(queue.waiting for queue in self._queues.values())

    def wake(self) -> None:
        """Wake the thread so that it calls ``work`` soon."""
        with self._bell:
            self._woken = True
            self._bell.notify()

    def is_busy(self, topic: str) -> bool:
        """Return whether batches of a topic wait for one in flight of their partition."""
        with self._lock:
            return self._queues.is_busy(topic)

    def queues(self, topic: TopicDescription) -> dict[int, QueueState]:
        """Return the queues of the topic's partitions that have had batches."""
        now = self._monotonic()
        found = {}
        with self._lock:
            for info in topic.partitions:
                queue = self._queues.get(TopicPartition(topic.name, info.partition))
                if queue is not None:
                    address = self._metadata.address_of(info.leader)
                    silent_s = now - self._silent_since.get(address or "", now)
                    found[info.partition] = QueueState(len(queue.waiting), silent_s)
        return found

    def look_up(self, topic: str) -> None:
        """Let the thread look up a topic, so that a caller that must not wait finds it later."""
        with self._lock:
            self._wanted_topics.add(topic)
        self.wake()

    @property
    def is_in_callback(self) -> bool:
        """True if the current thread runs a callback of this sender."""
        return threading.get_ident() in self._calling

    def statistics(self, buffer_bytes: int) -> ProducerStatistics:
        """Return the counters, with the bytes that the producer holds."""
        with self._lock:
            return self._counts.statistics(len(self._outstanding), buffer_bytes)

    def wait_until_sent(self, timeout_s: float | None) -> bool:
        """Wait until every batch queued so far is completed; returns false after ``timeout_s``.

        Raises ``UsageError`` in a callback, which would wait for itself.
        """
        with self._lock:
            last_round = self._outstanding.end_round()
        return self._wait(lambda: not self._outstanding.has_any_until(last_round), timeout_s)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait as ``wait_until_sent``, but also for batches that are queued meanwhile."""
        return self._wait(lambda: not self._outstanding, timeout_s)

    def _wait(self, is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        if self.is_in_callback:
            raise UsageError("a producer's callback cannot wait for the producer: flush, commit or close elsewhere")
        with self._lock:
            return self._condition.wait_for(is_over, timeout_s)

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread; remaining batches fail with ``ClientClosedError``.

        Wait at most ``timeout_s`` for the thread, which may still be connecting to a broker that does not answer.
        """
        with self._lock:
            self._stopping = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        self._fail_all(ClientClosedError("the producer was closed before these records were acknowledged"))

    # --- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._passing:
                next_work_s = self._pass(self._all_work)
                self._passing_thread = None
            with self._lock:
                wait_s = self._wait_s(next_work_s)
            with self._bell:
                if not self._woken and not self._stopping:
                    self._bell.wait(wait_s)
                self._woken = False
                if self._stopping:
                    return

    def _all_work(self) -> float | None:
        self._look_up_wanted()
        next_work_s = self._work()
        self._expire()
        self._drop_lost()
        return next_work_s

    def _pass(self, work: Callable[[], Result]) -> Result | None:
        """Run ``work`` and send all batches that are ready; one thread at a time."""
        self._passing_thread = threading.get_ident()
        result = None
        try:
            result = work()
            for address, batches in self._take_ready().items():
                self._send(address, batches)
        except Exception as error:
            # A bug in the sender: fail all queued batches with it, so that none is lost silently.
            logger.exception("the producer's sender failed")
            self._fail_all(UnknownServerError(f"the producer failed: {error!r}"))
        return result

    def _wait_s(self, next_work_s: float | None) -> float | None:
        now = self._monotonic()
        times = self._queues.times(now)
        if next_work_s is not None:
            times.append(now + next_work_s)
        return max(min(times) - now, 0.0) if times else None

    def _look_up_wanted(self) -> None:
        with self._lock:
            wanted, self._wanted_topics = self._wanted_topics, set()
        for topic in wanted:
            try:
                self._metadata.topic(topic, timeout_ms=self._config.request_timeout_ms)
            except MillraceError as error:
                logger.info("no metadata of topic %s yet: %s", topic, error.message)

    def _expire(self) -> None:
        with self._lock:
            expired = self._queues.expire(self._monotonic())
        for outgoing in expired:
            self._identity.forget(outgoing)
            self._complete(outgoing, error=outgoing.overdue(self._config.delivery_timeout_ms))

    def _drop_lost(self) -> None:
        """Fail the batches of a transaction that is being aborted, or can only be aborted."""
        if self._transactions is not None and (error := self._transactions.sending_error()) is not None:
            self._fail_all(error, spare_in_flight=True)

    def _take_ready(self) -> dict[str, list[Outgoing]]:
        """Take the queue heads that can be sent now, by leader address, as many as fit into a request."""
        with self._lock:
            ready = self._queues.ready(self._monotonic())
        taken: dict[str, list[Outgoing]] = {}
        sizes: dict[str, int] = {}
        for partition, address in self._sendable(ready):
            if self._requests_in_flight.get(address, 0) >= self._config.max_in_flight_requests_per_connection:
                continue
            with self._lock:
                queue = self._queues[partition]
                if not queue.waiting:
                    continue
                size_bytes = len(queue.waiting[0].batch.records)
                if taken.get(address) and sizes[address] + size_bytes > _REQUEST_BYTES:
                    self._woken = True  # the rest goes into the next request
                    continue
                queue.in_flight = True
                taken.setdefault(address, []).append(queue.waiting.popleft())
                sizes[address] = sizes.get(address, 0) + size_bytes
                # The next pass begins with the partitions that were not taken.
                self._queues[partition] = self._queues.pop(partition)
        return taken

    def _sendable(self, ready: list[TopicPartition]) -> list[tuple[TopicPartition, str]]:
        """Return the partitions with a known leader and producer id that are in the transaction."""
        self._doubt_leaders(ready)
        found = []
        for partition in ready:
            try:
                known = self._metadata.known_leader_address(partition)
                address = known or self._metadata.leader_address(partition, self._lookup_timeout_ms())
                self._identity.ensure(self._lookup_timeout_ms)
                found.append((partition, address))
            except MillraceError as error:
                self._postpone(partition, error)
        if self._transactions is None or not found:
            return found
        try:
            self._transactions.add_partitions((partition for partition, _ in found), self._lookup_timeout_ms())
        except MillraceError as error:
            for partition, _ in found:
                self._postpone(partition, error)
            return []
        return found

    def _doubt_leaders(self, ready: list[TopicPartition]) -> None:
        """Refresh metadata before a retry, because an earlier lookup may have returned the old leader."""
        with self._lock:
            queues = {partition: self._queues[partition] for partition in ready}
            doubted = {partition.topic for partition, queue in queues.items() if queue.is_leader_in_doubt}
            for queue in queues.values():
                queue.is_leader_in_doubt = False
        self._metadata.forget(doubted)

    def _postpone(self, partition: TopicPartition, error: MillraceError) -> None:
        """Delay a partition without leader or producer id, or fail its batches if a retry is useless."""
        with self._lock:
            queue = self._queues[partition]
            if not queue.waiting:
                return
            head = queue.waiting[0]
            head.last_error = error
            head.attempts += 1
            wait_s = backoff_s(self._config, head.attempts)
            if isinstance(error, ConcurrentTransactionsError):
                wait_s = _CONCURRENT_WAIT_S
            queue.retry_at = self._monotonic() + wait_s
            hopeless = [] if error.retriable and error.code != 3 else list(queue.waiting)
            if hopeless:
                queue.waiting.clear()
        for outgoing in hopeless:
            self._complete(outgoing, error=error)

    def _lookup_timeout_ms(self) -> int:
        """Return the timeout for lookups of leaders and ids, which ends before the first batch expires."""
        with self._lock:
            deadlines = [queue.waiting[0].deadline for queue in self._queues.values() if queue.waiting]
        left_ms = (min(deadlines, default=0.0) - self._monotonic()) * 1000
        return max(min(int(left_ms), self._config.request_timeout_ms), 1)

    def _send(self, address: str, batches: list[Outgoing]) -> None:
        with self._lock:
            self._requests_in_flight[address] = self._requests_in_flight.get(address, 0) + 1
            self._silent_since.setdefault(address, self._monotonic())
            self._counts.requests += 1
            self._counts.batches_repeated += sum(outgoing.attempts > 0 for outgoing in batches)
        try:
            self._call(address, batches)
        except Exception as error:
            # The channel was closed, or a bug in the sender: these batches must get an outcome.
            logger.debug("a produce request could not be built", exc_info=True)
            closed = ClientClosedError("the producer was closed before these records were acknowledged")
            failure = closed if self._connections.is_closed else UnknownServerError(f"the producer failed: {error!r}")
            self._answered(address, batches, None, failure)

    def _call(self, address: str, batches: list[Outgoing]) -> None:
        topics: dict[str, list[tuple[int, list[object]]]] = {}
        for outgoing in batches:
            outgoing.attempts += 1
            pieces = stamped_parts(outgoing.batch.records, self._identity.stamp(outgoing))
            topics.setdefault(outgoing.partition.topic, []).append((outgoing.partition.partition, pieces))
        timeout_ms = self._config.request_timeout_ms
        request = encode_produce_request(
            self._config.acks.number,
            timeout_ms,
            topics.items(),
            transactional_id="" if self._transactions is None else self._transactions.state.transactional_id,
            coordinator_key=self._config.coordinator_key,
        )
        now = self._monotonic()
        left_s = max(outgoing.deadline for outgoing in batches) - now  # until delivery.timeout.ms
        timeout_s = max(min(timeout_ms / 1000, left_s), 0.001)
        with self._lock:
            self._queues.begin(batches, now + timeout_s)
        self._connections.begin(
            PRODUCE,
            request,
            address=address,
            timeout_s=timeout_s,
            on_done=lambda response, error: self._answered(address, batches, response, error),
        )

    # --- responses, in a thread of the connections -------------------------------------------------------------

    def _answered(
        self,
        address: str,
        batches: list[Outgoing],
        response: pb.ProduceResponse | None,
        error: MillraceError | None,
    ) -> None:
        results = {
            TopicPartition(topic.name, result.partition): result
            for topic in (() if response is None else response.topics)
            for result in topic.partitions
        }
        with self._lock:
            self._requests_in_flight[address] -= 1
            if error is None:
                self._silent_since.pop(address, None)
                if self._requests_in_flight[address]:
                    self._silent_since[address] = self._monotonic()
            batches = [outgoing for outgoing in batches if self._queues.end(outgoing)]
        for outgoing in batches:
            result = results.get(outgoing.partition)
            if error is not None:
                self._failed(outgoing, error)
            elif self._config.acks is Acks.NONE:
                self._succeeded(outgoing, -1, -1)  # acks=0: the broker answers at once, without a result
            elif result is None:
                self._failed(outgoing, UnknownServerError(f"broker {address} did not answer for {outgoing.partition}"))
            elif result.error.code:
                self._failed(outgoing, partition_error(outgoing.partition, result.error))
            else:
                self._succeeded(outgoing, result.base_offset, result.log_append_time_ms)
        with self._lock:
            has_more = any(queue.waiting for queue in self._queues.values())
        if has_more or self._has_records():
            self.wake()

    def _succeeded(self, outgoing: Outgoing, base_offset: int, append_time_ms: int) -> None:
        metadata = BatchMetadata(
            topic=outgoing.partition.topic,
            partition=outgoing.partition.partition,
            base_offset=base_offset,
            num_records=outgoing.batch.num_rows,
        )
        self._complete(outgoing, metadata, append_time_ms, was_in_flight=True)

    def _failed(self, outgoing: Outgoing, error: MillraceError) -> None:
        if isinstance(error, DuplicateSequenceError):
            self._succeeded(outgoing, -1, -1)  # an earlier attempt wrote the batch; only its offset is unknown
            return
        outgoing.attempt_failed(error)
        if error.retriable and not isinstance(error, ClientClosedError) and outgoing.attempts <= self._config.retries:
            with self._lock:
                retry_at = self._monotonic() + backoff_s(self._config, outgoing.attempts - 1)
                self._queues.requeue(outgoing, retry_at)
        elif outgoing.can_be_halved(error) and not self._stopping:  # Kafka's ``splitAndReenqueue``
            halves = outgoing.halves()
            with self._lock:
                self._identity.release(outgoing)
                self._outstanding.halve(outgoing)
                self._queues.replace(halves)
        else:
            self._identity.forget(outgoing)
            self._complete(outgoing, error=error, was_in_flight=True)

    def _complete(
        self,
        outgoing: Outgoing,
        metadata: BatchMetadata | None = None,
        append_time_ms: int = -1,
        error: MillraceError | None = None,
        *,
        was_in_flight: bool = False,
    ) -> None:
        if error is not None and self._transactions is not None:
            self._transactions.batch_failed(error)
        thread = threading.get_ident()
        self._calling.add(thread)
        try:
            outgoing.completion(metadata, append_time_ms, error, outgoing.batch)
        finally:
            self._calling.discard(thread)
            with self._lock:
                if was_in_flight:
                    self._queues[outgoing.partition].in_flight = False
                self._outstanding.remove(outgoing)
                self._counts.completed(outgoing, error)
                self._condition.notify_all()

    def _fail_all(self, error: MillraceError, *, spare_in_flight: bool = False) -> None:
        """Fail waiting batches; ``spare_in_flight`` leaves those behind a batch whose callbacks must come first."""
        left: list[Outgoing] = []
        with self._lock:
            for queue in self._queues.values():
                if not spare_in_flight or queue.can_expire:
                    left += queue.waiting
                    queue.waiting.clear()
        for outgoing in left:
            self._complete(outgoing, error=error)

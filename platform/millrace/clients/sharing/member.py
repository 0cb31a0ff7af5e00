"""Driver of a share group member: a heartbeat thread."""

from __future__ import annotations

import logging
import threading
import time
import uuid

from millrace.clients.backoff import backoff_s
from millrace.clients.connections import Connections, ms_until
from millrace.clients.membership.coordinator import Coordinator
from millrace.clients.model import TopicPartition
from millrace.clients.sharing.membership import Beat, ShareMembership
from millrace.clients.signal import Signal
from millrace.config.client import ShareConsumerConfig
from millrace.errors import MillraceError
from millrace.ids import id_text
from millrace.protocol import millrace_pb2 as pb

logger = logging.getLogger(__name__)

_LEAVING = -1


class ShareMember:
    """One membership, from the first ``subscribe`` to ``leave``."""

    def __init__(
        self, config: ShareConsumerConfig, connections: Connections, coordinator: Coordinator, signal: Signal
    ) -> None:
        self._config = config
        self._connections = connections
        self._coordinator = coordinator
        self._signal = signal
        self._condition = threading.Condition()
        self._state = ShareMembership(member_id=id_text(uuid.uuid4()))
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    @property
    def member_id(self) -> str:
        """Member id, chosen by this member."""
        return self._state.member_id

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Assigned partitions of this member."""
        return self._state.assigned

    def subscribe(self, topics: frozenset[str]) -> None:
        """Subscribe to topics."""
        with self._condition:
            self._state = self._state.subscribed(topics, time.monotonic())
            self._condition.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="millrace-share-member", daemon=True)
            self._thread.start()

    def raise_failure(self) -> None:
        """Raise a fatal error of the group, once."""
        with self._condition:
            failure = self._state.failure
            if failure is not None:
                self._state = self._state.took_failure()
                self._condition.notify_all()
                raise failure

    def rejoin(self, error: MillraceError) -> None:
        """Process a fetch error that shows that the group does not know this member."""
        with self._condition:
            self._state = self._state.failed(error, 0.0, time.monotonic())
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._is_stopping or self._connections.is_closed:
                    return
                now = time.monotonic()
                beat = self._state.request(now)
                if beat is None:
                    wait_s = self._state.due_at - now
                    self._condition.wait(wait_s if wait_s > 0 else None)
                    continue
            self._send(beat)
            self._signal.ring()

    def _send(self, beat: Beat) -> None:
        try:
            response = self._call(beat.epoch, beat.topics, self._config.request_timeout_ms)
        except MillraceError as error:
            self._coordinator.notice(error)
            with self._condition:
                wait_s = backoff_s(self._config, self._state.attempts)
                self._state = self._state.failed(error, wait_s, time.monotonic())
            return
        assigned = None
        if response.has_assignment:
            assigned = frozenset(
                TopicPartition(topic.name, partition) for topic in response.assignment for partition in topic.partitions
            )
        with self._condition:
            self._state = self._state.answered(
                beat, response.member_epoch, assigned, response.heartbeat_interval_ms / 1000, time.monotonic()
            )

    def _call(self, epoch: int, topics: frozenset[str] | None, timeout_ms: int) -> pb.ShareGroupHeartbeatResponse:
        deadline = time.monotonic() + timeout_ms / 1000
        request = pb.ShareGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            rack_id=self._config.client_rack,
            subscribed_topics=sorted(topics or ()),
        )
        address = self._coordinator.address(timeout_ms)
        return self._connections.call(
            lambda stub: stub.ShareGroupHeartbeat, request, address=address, timeout_ms=ms_until(deadline)
        )

    def leave(self, timeout_s: float) -> None:
        """Leave the group; the coordinator delivers this member's acquired records to others.

        Waits at most ``timeout_s`` for the thread and the coordinator together.
        """
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        if self._thread is None:
            return
        self._thread.join(max(timeout_s, 0))
        is_over, self._thread = not self._thread.is_alive(), None
        if not is_over:
            logger.warning(
                "share group %s: the coordinator does not answer, the member leaves by its session timeout",
                self._config.group_id,
            )
        elif self._state.epoch:
            try:
                self._call(_LEAVING, None, ms_until(deadline))
            except MillraceError as error:
                logger.warning("leaving share group %s: %s", self._config.group_id, error.message)

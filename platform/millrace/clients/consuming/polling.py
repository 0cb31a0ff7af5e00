"""Poll loop of a consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.consuming.assignment import Assignment
from millrace.clients.consuming.fetcher import Fetcher
from millrace.clients.consuming.group import ConsumerGroup
from millrace.clients.consuming.partition import PartitionState
from millrace.clients.consuming.positions import PositionLookups
from millrace.clients.consuming.reader import PartitionReader
from millrace.clients.leaders import may_pass
from millrace.clients.metadata import MetadataCache
from millrace.clients.signal import Signal
from millrace.config.client import ConsumerConfig
from millrace.errors import (
    BrokerUnavailableError,
    MillraceError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    UsageError,
)

_RETRY_S: Final = 0.1
_ALL_KNOWN_S: Final = 3600.0
"""Seconds until the next attempt while no position is missing."""
_LOOK_UP_MS_MIN: Final = 1000
"""Minimum timeout of position lookups, even in a poll that does not wait, and the longest wait for a leader."""


class Poller:
    """Loop of a poll, in the caller's thread."""

    def __init__(
        self,
        config: ConsumerConfig,
        connections: Connections,
        metadata: MetadataCache,
        assignment: Assignment,
        fetcher: Fetcher,
        group: ConsumerGroup,
        signal: Signal,
    ) -> None:
        self._config = config
        self._connections = connections
        self._metadata = metadata
        self._assignment = assignment
        self._fetcher = fetcher
        self._group = group
        self._signal = signal
        self._positions = PositionLookups(config, connections, metadata)
        self._before: list[tuple[PartitionState, int | None, int]] = []
        self.gives_way = False
        """If true, a poll waits for nothing, because other calls wait for the consumer. Set by another thread."""

    @contextmanager
    def ready(self, timeout_ms: int) -> Iterator[list[PartitionReader]]:
        """Wait for data to read in the block. If an interrupt ends the block, its records are taken back."""
        self._before = []
        for state in self._assignment.states():
            if state.unseen_from is not None:
                state.move_to(state.unseen_from, state.offset_epoch)
        try:
            ready = self.wait_for_data(timeout_ms)
            self._before = [(each.state, each.state.position, each.state.offset_epoch) for each in ready]
            yield ready
        except Exception:
            raise
        except BaseException:
            self.take_back()
            self._fetcher.start_anew(self._assignment.states())
            raise

    def take_back(self) -> None:
        """Let the next poll read from the positions before the last one, because the application did not get its
        records.
        """
        for state, position, epoch in self._before:
            state.position, state.offset_epoch = position, epoch
            state.fetch_again()
        self._before = []

    def wait_for_data(self, timeout_ms: int) -> list[PartitionReader]:
        """Wait for data and return the readers that have some, rotated so that no partition is starved."""
        if self._group.subscription is None and not len(self._assignment):
            raise UsageError("no partitions are assigned: assign some first, or subscribe to topics")
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            serial = self._signal.serial
            self._signal.check()
            self._group.poll(deadline)
            self._fetcher.take_in()
            states = self._assignment.states()
            self._raise_errors(states)
            retry_s = self._look_up_positions(states, deadline)
            self._fetcher.send(states, int((deadline - time.monotonic()) * 1000))
            if ready := self._assignment.ready():
                return ready
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self.gives_way:
                return []
            self._signal.wait(serial, min(remaining, retry_s, self._next_retry_s()))

    def _look_up_positions(self, states: Sequence[PartitionState], deadline: float) -> float:
        """Find missing positions; returns the seconds until the next attempt."""
        if not self._positions.has_answers and all(each.position is not None for each in states):
            return _ALL_KNOWN_S
        left_ms = max(int((deadline - time.monotonic()) * 1000), _LOOK_UP_MS_MIN)
        try:
            self._positions.find(
                states,
                lambda partitions: self._group.committed(list(partitions), left_ms),
                timeout_ms=left_ms,
                wait_s=_LOOK_UP_MS_MIN / 1000,
            )
        except BrokerUnavailableError:
            if time.monotonic() >= deadline:
                raise
            return _RETRY_S
        except MillraceError as error:
            if not may_pass(error):
                raise
            return _RETRY_S
        return _ALL_KNOWN_S

    def _next_retry_s(self) -> float:
        """Return the seconds until the next fetch of a partition after an error."""
        now = time.monotonic()
        waits = [state.retry_at - now for state in self._assignment.states() if state.retry_at > now]
        return max(min(waits, default=1.0), 0.001)

    def _raise_errors(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            if state.error is not None:
                error, state.error = state.error, None
                state.unavailable_since = None
                if isinstance(error, UnknownTopicOrPartitionError):
                    self._group.look_at_topics()
                raise error

    def find_position(self, state: PartitionState) -> None:
        """Wait until a partition has a position. Raises ``RequestTimedOutError`` after ``default.api.timeout.ms``."""
        deadline = time.monotonic() + self._config.default_api_timeout_ms / 1000
        while state.position is None:
            serial = self._signal.serial
            retry_s = self._look_up_positions(self._assignment.states(), deadline)
            remaining = deadline - time.monotonic()
            if state.position is not None:
                return
            if remaining <= 0:
                raise RequestTimedOutError(
                    f"the position in {state.partition} was not found within default.api.timeout.ms="
                    f"{self._config.default_api_timeout_ms}: its leader or the group's coordinator does not answer"
                )
            self._signal.wait(serial, min(remaining, retry_s, self._next_retry_s()))

"""Tests of the validation of positions against a new leader's epochs."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients.consuming.epochs import Divergence, EpochChecks, find_divergence
from millrace.clients.consuming.partition import Fetched, PartitionState
from millrace.clients.model import PartitionInfo, TopicDescription, TopicPartition
from millrace.clients.signal import Signal
from millrace.config.client import ConsumerConfig
from millrace.errors import LeaderNotAvailableError


@pytest.mark.parametrize(
    ("end", "divergence"),
    [
        ((11, 3), None),
        ((10, 3), None),
        ((10, 2), None),  # the leader has the epoch of every record before the position
        ((9, 3), (9, 3)),
        ((4, 1), (4, 1)),
        ((-1, -1), (-1, -1)),
        ((-1, 3), (-1, -1)),
    ],
)
def test_a_position_is_good_up_to_where_its_epoch_ends(
    end: tuple[int, int], divergence: tuple[int, int] | None
) -> None:
    assert find_divergence(10, Divergence(*end)) == divergence


class Known:
    """Metadata with epochs that a test sets."""

    def __init__(self) -> None:
        self.epoch, self.topic_id = 0, uuid.uuid4()
        self.forgotten: list[str] = []

    def forget_old(self, name: str) -> None:
        self.forgotten.append(name)

    def topic(self, name: str, **_: Any) -> TopicDescription:
        partition = PartitionInfo(partition=0, leader=0, leader_epoch=self.epoch, replicas=(0,), isr=(0,))
        return TopicDescription(
            name=name,
            topic_id=self.topic_id,
            partitions=(partition,),
            schema_id=0,
            schema_version=0,
            schema=None,
            key_columns=(),
            is_internal=False,
        )


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
def checks(known: Known) -> EpochChecks:
    config = ConsumerConfig.of("127.0.0.1:1")
    metadata: Any = known
    return EpochChecks(config, SimpleNamespace(), metadata, Signal())  # type: ignore[arg-type]


def _state(offset: int, epoch: int) -> PartitionState:
    state = PartitionState(TopicPartition("t", 0))
    state.move_to(offset, epoch)
    return state


def test_a_position_without_an_epoch_is_taken_as_good(checks: EpochChecks, known: Known) -> None:
    state = _state(5, -1)
    known.epoch = 4
    assert checks.is_good(state, 0)
    assert state.leader_epoch == 4


def test_a_position_with_an_epoch_is_looked_up_once_per_epoch_of_the_leader(checks: EpochChecks, known: Known) -> None:
    state = _state(5, 0)
    assert not checks.is_good(state, 0)
    state.leader_epoch = 0  # the answer named this epoch
    assert checks.is_good(state, 0)
    known.epoch = 1
    assert not checks.is_good(state, 0)


def test_old_metadata_does_not_take_a_partition_back(checks: EpochChecks, known: Known) -> None:
    state = _state(5, 2)
    state.topic_id, state.leader_epoch = known.topic_id, 3
    known.epoch = 1
    assert checks.is_good(state, 0)
    assert state.leader_epoch == 3


def test_a_leader_older_than_the_record_before_the_position_is_not_asked(checks: EpochChecks, known: Known) -> None:
    state = _state(133, 2)  # as the group has committed it
    known.epoch = 1
    with pytest.raises(LeaderNotAvailableError, match=r"offset 133 has leader epoch 2, .* older leader epoch 1:"):
        checks.is_good(state, 0)
    assert known.forgotten == ["t"], "the metadata is fetched again"
    assert state.leader_epoch == -1
    known.epoch = 2
    assert not checks.is_good(state, 0), "the consumer looks the position up in the log of the leader of epoch 2"


def test_epochs_of_a_topic_that_is_gone_count_for_nothing(checks: EpochChecks, known: Known) -> None:
    state = _state(5, 2)
    state.topic_id, state.leader_epoch = known.topic_id, 3
    known.epoch, known.topic_id = 0, uuid.uuid4()
    assert checks.is_good(state, 0)
    assert (state.leader_epoch, state.offset_epoch) == (0, -1)


def test_records_prefetched_in_an_older_epoch_are_dropped(checks: EpochChecks, known: Known) -> None:
    state = _state(5, 0)
    state.topic_id, state.leader_epoch = known.topic_id, 0
    state.fetch_offset = 9
    state.waiting.append(Fetched(data=pa.py_buffer(b"x"), next_offset=9, held_bytes=1))
    generation = state.generation
    known.epoch = 1
    assert not checks.is_good(state, 0)
    assert (state.fetch_offset, len(state.waiting), state.offset_epoch) == (5, 0, 0)
    assert state.generation > generation

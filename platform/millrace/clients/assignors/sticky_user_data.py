"""User data of the sticky assignors, in Kafka's encoding.

``sticky`` revokes all partitions before a join, so the user data holds the previous ones: since Kafka 2.3 with the
generation (V1), earlier without (V0). The bytes carry no version, so data that is not valid V1 is read as V0.
``cooperative-sticky`` writes only its generation, for leaders with consumer protocol version 1 or older (KIP-429,
KIP-792).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from millrace.clients.assignors.model import NO_GENERATION
from millrace.clients.assignors.ownership import Claim
from millrace.clients.model import TopicPartition
from millrace.errors import InvalidRecordError
from millrace.kafka_protocol import Message, message, of


@message()
class PreviousPartitions(Message):
    """Partitions of a topic that a ``sticky`` member had."""

    topic: str = of("string")
    partitions: tuple[int, ...] = of("[]int32")


@message(versions="0-1")
class StickyUserData(Message):
    """Partitions of a ``sticky`` member after its last rebalance."""

    previous_assignment: tuple[PreviousPartitions, ...] = of("[]struct", element=PreviousPartitions)
    generation: int = of("int32", versions="1+", ignorable=True, default=NO_GENERATION)


@message(versions="0")
class CooperativeStickyUserData(Message):
    """Generation of the last rebalance of a ``cooperative-sticky`` member."""

    generation: int = of("int32")


def encode_sticky(owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Write user data of ``sticky`` (V1). Topics are sorted; a topic's partitions keep their order."""
    by_topic = groupby(sorted(owned, key=attrgetter("topic")), key=attrgetter("topic"))
    previous = tuple(
        PreviousPartitions(topic=topic, partitions=tuple(partition.partition for partition in partitions))
        for topic, partitions in by_topic
    )
    return StickyUserData(previous_assignment=previous, generation=generation).encode(1)


def decode_sticky(data: bytes | None) -> Claim:
    """Read user data of ``sticky``, V1 or V0. Invalid data claims nothing, so that no member can break a rebalance."""
    if not data:
        return Claim((), NO_GENERATION)
    for version in (1, 0):
        try:
            read = StickyUserData.decode(data, version)
        except InvalidRecordError:
            continue
        return Claim(
            [
                TopicPartition(of_topic.topic, partition)
                for of_topic in read.previous_assignment
                for partition in of_topic.partitions
            ],
            read.generation,
        )
    return Claim((), NO_GENERATION)


def encode_cooperative(generation: int) -> bytes:
    """Write user data of ``cooperative-sticky``."""
    return CooperativeStickyUserData(generation=generation).encode(0)


def decode_cooperative(data: bytes | None) -> int:
    """Read the generation from user data of ``cooperative-sticky``; -1 if there is none."""
    try:
        return CooperativeStickyUserData.decode(data or b"", 0).generation
    except InvalidRecordError:
        return NO_GENERATION

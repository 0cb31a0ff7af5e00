"""Tests of calls for offsets of share groups, without the network."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import HANDLERS, ClientAddress, RequestContext
from millrace_broker.security import ANONYMOUS

from ..groups.test_coordinator import opened
from .test_fetches import led, move

_ALTER, _DESCRIBE, _DELETE = "AlterShareGroupOffsets", "DescribeShareGroupOffsets", "DeleteShareGroupOffsets"


def test_calls_wait_while_the_state_of_their_group_is_loaded(tmp_path: Path) -> None:
    """Kafka's coordinator retries meanwhile, so that its clients need not."""

    async def scenario() -> None:
        async with opened(tmp_path) as broker:
            await led(broker)

            async def answer(call: str, request: Any) -> Any:
                move(broker)
                return await HANDLERS[call](broker, request, _context(call))

            set_to_8 = pb.AlterShareGroupOffsetsRequest(group_id="g")
            set_to_8.topics.add(name="orders").partitions.add(partition=0, start_offset=8)
            altered = await answer(_ALTER, set_to_8)
            assert not altered.topics[0].partitions[0].HasField("error")
            every_topic = pb.DescribeShareGroupOffsetsRequest()
            every_topic.groups.add(group_id="g", all_topics=True)
            (group,) = (await answer(_DESCRIBE, every_topic)).groups
            assert not group.HasField("error")
            assert group.topics[0].partitions[0].start_offset == 8
            deleted = await answer(_DELETE, pb.DeleteShareGroupOffsetsRequest(group_id="g", topics=["orders"]))
            assert not deleted.topics[0].HasField("error")

    asyncio.run(scenario())


def _context(call: str) -> RequestContext:
    return RequestContext(call, "L", ANONYMOUS, "", ClientAddress("h", 1), cast("Any", None))

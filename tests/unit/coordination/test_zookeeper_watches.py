from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.coordination import EventType, NodeStat
from millrace.coordination.zookeeper_watches import LeftWatch, missed_event

NODE = NodeStat(
    version=0,
    children_version=4,
    created_id=7,
    modified_id=9,
    created_ms=1,
    modified_ms=1,
    ephemeral_owner=0,
    children=0,
)
WRITTEN = replace(NODE, version=1, modified_id=12)
PARENT = replace(NODE, children_version=5, children=1)
ANOTHER = replace(NODE, created_id=12, modified_id=12)


@pytest.mark.parametrize(
    ("before", "after", "of_data", "of_children"),
    [
        (NODE, NODE, None, None),
        (NODE, WRITTEN, EventType.CHANGED, None),
        (NODE, PARENT, None, EventType.CHILDREN),
        (NODE, ANOTHER, EventType.CHANGED, EventType.CHILDREN),
        (NODE, None, EventType.DELETED, EventType.DELETED),
        (None, NODE, EventType.CREATED, EventType.CREATED),
        (None, None, None, None),
    ],
)
def test_a_missed_event_is_derived_from_the_node(
    before: NodeStat | None, after: NodeStat | None, of_data: EventType | None, of_children: EventType | None
) -> None:
    assert missed_event(before, after, of_children=False) == of_data
    assert missed_event(before, after, of_children=True) == of_children


def test_the_same_function_is_one_watch_unless_it_was_spent() -> None:
    events: list[object] = []
    first, second, other = (LeftWatch("/a", call, of_children=False) for call in (events.append, events.append, print))
    assert len({first, second, other}) == 2
    first.spent = True
    assert len({first, second}) == 2
    assert first in {first}

"""Tests of the order of a log's offsets.

Only their own module changes them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace_broker.log
from millrace_broker.log.log_offsets import LogOffsets

NAMES = set(LogOffsets.__slots__)

MOVES = {
    "advance_end": lambda offsets, by: offsets.advance_end(offsets.end + by),
    "advance_recovery_point": lambda offsets, by: offsets.advance_recovery_point(
        min(offsets.recovery_point + by, offsets.end)
    ),
    "require_sync": lambda offsets, by: offsets.require_sync(bool(by % 2)),
    "raise_start": lambda offsets, by: offsets.raise_start(min(offsets.start + by, offsets.high_watermark)),
    "hold_high_watermark": lambda offsets, by: offsets.hold_high_watermark(by),
    "raise_high_watermark": lambda offsets, by: offsets.raise_high_watermark(by),
    "release_high_watermark": lambda offsets, by: offsets.release_high_watermark(),
    "lower_recovery_point": lambda offsets, by: offsets.lower_recovery_point(by),
    "truncate": lambda offsets, by: offsets.truncate(min(by, offsets.end)),
    "restart": lambda offsets, by: offsets.restart(by),
}


def offsets_of(start: int, end: int, recovery_point: int, *, syncs_before_ack: bool = False) -> LogOffsets:
    return LogOffsets(start=start, end=end, recovery_point=recovery_point, syncs_before_ack=syncs_before_ack)


@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 30)), max_size=40),
)
def test_any_sequence_of_changes_keeps_the_offsets_in_order(
    syncs_before_ack: bool, moves: list[tuple[str, int]]
) -> None:
    offsets = offsets_of(3, 20, 20, syncs_before_ack=syncs_before_ack)
    for name, by in moves:
        before = offsets.high_watermark
        MOVES[name](offsets, by)
        assert offsets.start <= offsets.high_watermark <= offsets.end
        assert offsets.recovery_point <= offsets.end
        if name not in ("hold_high_watermark", "truncate", "restart"):
            assert offsets.high_watermark >= before
        if offsets.is_only_replica:
            assert offsets.high_watermark >= offsets.durable_end


def test_high_watermark_of_an_only_replica_follows_the_end_or_the_synced_records() -> None:
    unsynced, synced = offsets_of(0, 5, 5), offsets_of(0, 5, 5, syncs_before_ack=True)
    for offsets in (unsynced, synced):
        offsets.advance_end(9)
    assert (unsynced.high_watermark, synced.high_watermark) == (9, 5)
    synced.advance_recovery_point(7)
    assert (synced.high_watermark, synced.durable_end, unsynced.durable_end) == (7, 7, 9)


def test_high_watermark_with_other_replicas_moves_only_when_it_is_raised() -> None:
    offsets = offsets_of(2, 10, 10)
    assert offsets.hold_high_watermark(4)
    assert not offsets.hold_high_watermark(4)
    offsets.advance_end(12)
    offsets.advance_recovery_point(12)
    assert offsets.high_watermark == 4
    offsets.raise_high_watermark(99)
    assert offsets.high_watermark == 12
    offsets.raise_high_watermark(5)
    assert offsets.high_watermark == 12


def test_released_high_watermark_is_the_durable_end() -> None:
    for syncs_before_ack, expected in ((False, 10), (True, 7)):
        offsets = offsets_of(2, 10, 7, syncs_before_ack=syncs_before_ack)
        offsets.hold_high_watermark(4)
        offsets.release_high_watermark()
        assert offsets.high_watermark == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda offsets: offsets.advance_end(9),
        lambda offsets: offsets.advance_recovery_point(11),
        lambda offsets: offsets.advance_recovery_point(7),
        lambda offsets: offsets.raise_start(11),
        lambda offsets: offsets.raise_start(1),
        lambda offsets: offsets.truncate(11),
    ],
)
def test_change_that_would_break_the_order_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(AssertionError, match="LogOffsets"):
        change(offsets_of(2, 10, 8))


def test_truncation_lowers_all_offsets_above_the_new_end() -> None:
    offsets = offsets_of(4, 10, 10)
    offsets.truncate(3)
    assert (offsets.start, offsets.high_watermark, offsets.end, offsets.recovery_point) == (3, 3, 3, 3)


def test_no_other_module_assigns_to_the_offsets_of_a_log() -> None:
    package = Path(millrace_broker.log.__file__).parents[1]
    found = []
    for path in package.rglob("*.py"):
        if path.name == "log_offsets.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            flat = [each for target in targets if target is not None for each in ast.walk(target)]
            found += [
                f"{path.relative_to(package)}:{each.lineno}"
                for each in flat
                if isinstance(each, ast.Attribute)
                and each.attr in NAMES
                and isinstance(each.value, ast.Attribute | ast.Name)
                and (each.value.attr if isinstance(each.value, ast.Attribute) else each.value.id).endswith("offsets")
            ]
    assert found == []

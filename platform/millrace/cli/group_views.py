"""Output of groups: tables with Kafka's columns and further ones, and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from millrace.cli.output import print_json, print_table
from millrace.partitions import numbers_by_topic

if TYPE_CHECKING:
    from millrace.clients import Admin
    from millrace.clients.groups.model import GroupDescription, GroupMemberDescription, PartitionLag

_NOTHING: Final = "-"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_OFFSET_COLUMNS: Final = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-BYTES", "LAG-TIME",
    "CONSUMER-ID", "HOST", "CLIENT-ID",
)  # fmt: skip
_SHARE_COLUMNS: Final = (
    "GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-BYTES", "LAG-TIME",
)  # fmt: skip
_MEMBER_COLUMNS: Final = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
_STATE_COLUMNS: Final = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "TYPE", "GENERATION", "#MEMBERS")


def show_offsets(admin: Admin, names: Iterable[str], *, as_json: bool) -> None:
    """Print offsets and lag of every partition, with a line of sums for each group with several partitions."""
    lags = {name: (admin.describe_group(name), admin.group_lag(name)) for name in names}
    if as_json:
        print_json([_lag_json(lag) for _, rows in lags.values() for lag in rows])
        return
    for name, (group, rows) in lags.items():
        _say_state(group)
        if rows:
            columns = _SHARE_COLUMNS if group.is_shared else _OFFSET_COLUMNS
            table = [*map(_offset_row, rows), *_sums(name, rows)]
            print_table(columns, [row[: len(columns)] for row in table])
        else:
            typer.echo(f"group {name} has {'read' if group.is_shared else 'committed'} nothing")


def _say_state(group: GroupDescription) -> None:
    """Print the note of Kafka's tool before the table."""
    if group.state == "Empty":
        kind = "Share" if group.is_shared else "Consumer"
        typer.echo(f"\n{kind} group '{group.group_id}' has no active members.\n", err=True)
    elif group.state.endswith("Rebalance"):
        typer.echo(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.\n", err=True)


def _offset_row(lag: PartitionLag) -> Sequence[Any]:
    return (
        lag.group_id,
        lag.topic,
        lag.partition,
        _or_nothing(lag.committed),
        _or_nothing(lag.log_end),
        _or_nothing(lag.lag),
        size_text(lag.lag_bytes),
        age_text(lag.lag_seconds),
        lag.member.name if lag.member else _NOTHING,
        lag.member.host if lag.member else _NOTHING,
        (lag.member.client_id or _NOTHING) if lag.member else _NOTHING,
    )


def _sums(name: str, rows: Sequence[PartitionLag]) -> list[Sequence[Any]]:
    if len(rows) < 2:
        return []
    records = sum(row.lag or 0 for row in rows)
    size_bytes = sum(row.lag_bytes or 0 for row in rows)
    seconds = max((row.lag_seconds for row in rows if row.lag_seconds is not None), default=None)
    return [(name, "(all)", "", "", "", records, size_text(size_bytes), age_text(seconds), "", "", "")]


def _lag_json(lag: PartitionLag) -> dict[str, Any]:
    return {
        "group": lag.group_id,
        "topic": lag.topic,
        "partition": lag.partition,
        "current_offset": lag.committed,
        "log_start_offset": lag.log_start,
        "log_end_offset": lag.log_end,
        "lag": lag.lag,
        "lag_bytes": lag.lag_bytes,
        "lag_seconds": lag.lag_seconds,
        "committed_at": lag.committed_at_ms,
        "member": None if lag.member is None else lag.member.member_id,
    }


def show_members(admin: Admin, names: Iterable[str], *, verbose: bool, as_json: bool) -> None:
    """Print the members of the groups."""
    groups = [admin.describe_group(name) for name in names]
    if as_json:
        print_json([{"group": group.group_id, "members": [asdict(each) for each in group.members]} for group in groups])
        return
    columns = [*_MEMBER_COLUMNS, "ASSIGNMENT"] if verbose else _MEMBER_COLUMNS
    rows = [_member_row(group.group_id, member, verbose) for group in groups for member in group.members]
    for group in groups:
        _say_state(group)
    if rows:
        print_table(columns, rows)


def _member_row(group_id: str, member: GroupMemberDescription, verbose: bool) -> Sequence[Any]:
    row = [group_id, member.name, member.host, member.client_id or _NOTHING, len(member.partitions)]
    if not verbose:
        return row
    topics = numbers_by_topic(member.partitions)
    assigned = ", ".join(f"{topic}({','.join(map(str, numbers))})" for topic, numbers in topics.items())
    return [*row, assigned or _NOTHING]


def show_states(admin: Admin, names: Iterable[str], *, as_json: bool) -> None:
    """Print the groups' states."""
    groups = [admin.describe_group(name) for name in names]
    if as_json:
        print_json([{**asdict(group), "members": len(group.members)} for group in groups])
        return
    print_table(
        _STATE_COLUMNS,
        [
            (
                group.group_id,
                group.coordinator,
                group.assignor or _NOTHING,
                group.state,
                group.type,
                group.generation_id,
                len(group.members),
            )
            for group in groups
        ],
    )


def size_text(size_bytes: int | None) -> str:
    """Format a size: 1.5 MiB."""
    if size_bytes is None:
        return _NOTHING
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def age_text(seconds: float | None) -> str:
    """Format an age: 3.2 s, 12m 05s, 2h 03m, 4d 06h."""
    if seconds is None:
        return _NOTHING
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def _or_nothing(value: int | None) -> Any:
    return _NOTHING if value is None else value

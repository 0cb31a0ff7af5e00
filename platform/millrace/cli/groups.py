"""List, describe, reset and delete groups of consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client
from millrace.cli.position_options import (
    ByDuration,
    Execute,
    FromFile,
    ShiftBy,
    ToDatetime,
    ToEarliest,
    ToLatest,
    ToOffset,
)
from millrace.errors import GroupIdNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millrace.clients import Admin

app = command_group("List, describe, reset and delete consumer groups and share groups.")

_STATES = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Empty", "Dead")
_TYPES = ("classic", "consumer", "share")

Groups = Annotated[list[str] | None, typer.Argument(metavar="GROUP...", help="Groups.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups.")]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC[:0,1,2]", help="Topic, or some of its partitions. Repeatable."),
]


@app.command("list")
def list_groups(
    state: Annotated[list[str] | None, typer.Option(help="Only groups in this state: Stable, Empty...")] = None,
    group_type: Annotated[
        list[str] | None, typer.Option("--type", help="Only groups of these types: classic, consumer, share.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """List groups.

    Examples:

      millrace groups list

      millrace groups list --state Empty --json | jq -r '.[].group'
    """
    from millrace.cli.output import print_json, print_table

    _check_known("--state", state, _STATES)
    _check_known("--type", group_type, _TYPES)
    with admin_client(bootstrap_server, client_config) as admin:
        groups = admin.list_groups(states=state or (), types=group_type or ())
    if as_json:
        print_json(
            [
                {"group": group.group_id, "type": group.type, "protocol": group.protocol_type, "state": group.state}
                for group in groups
            ]
        )
    else:
        print_table(
            ["GROUP", "TYPE", "PROTOCOL", "STATE"],
            [(group.group_id, group.type, group.protocol_type or "-", group.state) for group in groups],
        )


def _check_known(option: str, values: Sequence[str] | None, known: Sequence[str]) -> None:
    """Raise ``UsageError`` for a value that no group has. Upper and lower case are equal, as in Kafka's tool."""
    for value in values or ():
        if value.casefold() not in map(str.casefold, known):
            raise UsageError(f"{option} {value}: expected one of {', '.join(known)}")


@app.command()
def describe(
    group: Groups = None,
    all_groups: AllGroups = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Show offsets and lag. This is the default.")] = False,
    members: Annotated[bool, typer.Option("--members", help="Show the members of the group.")] = False,
    state: Annotated[bool, typer.Option("--state", help="The group's state.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="With --members, show their partitions too.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Show the offsets and the lag of groups, their members, or their state.

    LAG is the number of unread records, LAG-BYTES the size of their batches, LAG-TIME the age of the first unread
    record. For a share group START-OFFSET is the first record that is neither accepted nor rejected, and LAG is the
    number of such records.

    Examples:

      millrace groups describe billing

      millrace groups describe billing --members --verbose

      millrace groups describe --all-groups --state
    """
    from millrace.cli import group_views

    if offsets + members + state > 1:
        raise UsageError("--offsets, --members and --state: choose one")
    if verbose and not members:
        raise UsageError("--verbose needs --members")
    with admin_client(bootstrap_server, client_config) as admin:
        names = _names(admin, group, all_groups)
        if members:
            group_views.show_members(admin, names, verbose=verbose, as_json=as_json)
        elif state:
            group_views.show_states(admin, names, as_json=as_json)
        else:
            group_views.show_offsets(admin, names, as_json=as_json)


def _names(admin: Admin, given: list[str] | None, all_groups: bool) -> list[str]:
    if bool(given) == all_groups:
        raise UsageError("name groups, or give --all-groups")
    return given or [group.group_id for group in admin.list_groups()]


@app.command("reset-offsets")
def reset_offsets(
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: TopicsOption = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics with committed offsets of the group.")
    ] = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep the present offsets. Useful with --export.")
    ] = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    from_file: FromFile = None,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as a file for --from-file.")] = False,
    execute: Execute = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the change. This is the default.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Set the offsets at which groups continue. Groups with members are refused: stop their members first.

    Examples:

      millrace groups reset-offsets billing --topic orders --to-datetime 2026-05-01T00:00 --execute

      millrace groups reset-offsets billing --topic orders:0,1 --shift-by -100

      millrace groups reset-offsets billing --all-topics --to-current --export > offsets.csv

      millrace groups reset-offsets billing --from-file offsets.csv --execute
    """
    from millrace.cli import group_resets
    from millrace.cli.group_resets import Wish
    from millrace.clients.groups.resets import write_plans

    wish = Wish.of(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_current=to_current,
        to_offset=to_offset,
        to_datetime=to_datetime,
        by_duration=by_duration,
        shift_by=shift_by,
        from_file=from_file,
    )
    if execute and dry_run:
        raise UsageError("--execute and --dry-run: choose one")
    with admin_client(bootstrap_server, client_config) as admin:
        names = _names(admin, group, all_groups)
        for name in names:
            _refuse_active(admin, name)
        plans = group_resets.plan_resets(admin, names, wish, topic or [], all_topics=all_topics)
        if execute:
            group_resets.execute(admin, plans)
    if export:
        typer.echo(write_plans(plans), nl=False)
    else:
        group_resets.show_plans(plans, as_json=as_json, was_executed=execute)


def _refuse_active(admin: Admin, name: str) -> None:
    try:
        described = admin.describe_group(name)
    except GroupIdNotFoundError:
        return  # the first offsets create the group
    if described.is_active:
        raise UsageError(f"group {name} is {described.state}, with {len(described.members)} members: stop them first")


@app.command()
def delete(
    group: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Groups to delete.")],
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Delete groups with their offsets. Groups with members are refused."""
    with admin_client(bootstrap_server, client_config) as admin:
        admin.delete_groups(group)
    typer.echo(f"deleted {', '.join(group)}")


@app.command("delete-offsets")
def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    topic: TopicsOption = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Delete the offsets of a group for topics without a subscribed member; of share groups for whole topics."""
    from millrace.cli.group_resets import chosen_partitions, is_shared

    if not topic:
        raise UsageError("give the topics: --topic orders, or --topic orders:0,1")
    with admin_client(bootstrap_server, client_config) as admin:
        if is_shared(admin, group):
            if any(":" in name for name in topic):
                raise UsageError(f"{group} is a share group, whose offsets are deleted by topic: --topic orders")
            forgotten = topic
            admin.delete_share_group_offsets(group, topic)
        else:
            partitions = chosen_partitions(admin, topic)
            forgotten = [str(partition) for partition in partitions]
            admin.delete_group_offsets(group, partitions)
    typer.echo(f"group {group}: deleted the offsets of {', '.join(forgotten)}")


@app.command("remove-members")
def remove_members(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    instance: Annotated[
        list[str] | None,
        typer.Option("--instance", help="group.instance.id of a static member. The default is all members."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Remove members from a group, such as static members that will not come back."""
    with admin_client(bootstrap_server, client_config) as admin:
        admin.remove_members(group, instance)
    typer.echo(f"group {group}: {', '.join(instance) if instance else 'all members'} removed")

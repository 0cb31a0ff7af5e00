"""Commands ``millrace reassign``, which move partitions to other brokers.

They propose, execute, verify, list and cancel reassignments.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client, is_number
from millrace.cli.tool_files import file_text
from millrace.errors import MillraceError, ReassignmentInProgressError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from millrace.clients import Admin, TopicPartition
    from millrace_broker.cli.reassignment_plans import Move

app = command_group("Move partitions to other brokers.")

_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="File with the plan, as generate prints it.")]
Throttle = Annotated[
    int | None, typer.Option(metavar="BYTES", help="Throttle of the move in bytes per second, for each broker.")
]


@app.command()
def generate(
    brokers: Annotated[str, typer.Option(help="Ids of the brokers that get the topics, such as 1,2,3.")],
    topics: Annotated[str, typer.Option(help="Topics, separated by commas.")] = "",
    topics_file: Annotated[
        Path | None, typer.Option(help='JSON file that names them: {"topics": [{"topic": "orders"}]}.')
    ] = None,
    without_racks: Annotated[bool, typer.Option("--disable-rack-aware", help="Ignore racks.")] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Propose a plan that spreads topics over brokers.

    The present assignment goes to standard error. Keep it, so that you can move the partitions back.

    Examples:

      millrace reassign generate --topics orders,clicks --brokers 1,2,3 > plan.json
    """
    from millrace_broker.cli.reassignment_plans import plan_json, propose, read_topics
    from millrace_broker.metadata.assignment import BrokerRack

    names = [name for name in topics.split(",") if name]
    if topics_file is not None:
        names += read_topics(file_text(topics_file))
    if not names:
        raise UsageError("name the topics to move: --topics or --topics-file")
    ids = _broker_ids(brokers)
    with admin_client(bootstrap_server, client_config) as admin:
        present = _present(admin, names)
        racks = _check_alive(admin, ids)
        proposed = propose(present, [BrokerRack(each, None if without_racks else racks[each] or None) for each in ids])
    typer.echo(f"current plan:\n{plan_json(present)}\nproposed plan:", err=True)
    typer.echo(plan_json(proposed))


@app.command()
def execute(
    plan_file: PlanFile,
    throttle: Throttle = None,
    additional: Annotated[
        bool, typer.Option("--additional", help="Start even if other partitions are moving.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Start to move partitions.

    The move continues after the command ends. Run the command again to change the throttle or the plan.

    Examples:

      millrace reassign execute plan.json --throttle 50000000
    """
    from millrace_broker.cli.reassignment_plans import moves, plan_json, read_plan

    plan = read_plan(file_text(plan_file))
    with admin_client(bootstrap_server, client_config) as admin:
        present = _present(admin, {each.topic for each in plan})
        if unknown := sorted(plan.keys() - present.keys()):
            raise UsageError(f"there is no partition {', '.join(map(_name, unknown))}")
        moving = admin.list_partition_reassignments()
        others = moving.keys() - plan.keys()
        if others and not additional:
            raise ReassignmentInProgressError(
                f"{', '.join(map(_name, sorted(others)))} are moving already: wait for them, cancel them, or "
                "add --additional"
            )
        coming = moves(plan, present, moving)
        _check_alive(admin, {each for move in coming.values() for each in move.receivers})
        typer.echo(f"current plan, to return to:\n{plan_json({each: present[each] for each in plan})}", err=True)
        if throttle is not None:
            _limit(admin, coming, throttle)
        answers = admin.alter_partition_reassignments(plan)
        if throttle is not None and any(error is not None for error in answers.values()):
            _unlimit(admin, {each.topic for each in plan}, admin.list_partition_reassignments())
        _check(answers)
    typer.echo(f"{len(plan)} partitions are moving: check them with millrace reassign verify {plan_file}")


@app.command()
def verify(
    plan_file: PlanFile,
    as_json: AsJson = False,
    keep_throttle: Annotated[bool, typer.Option("--preserve-throttles", help="Keep the throttles.")] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Show the progress of a plan. After its last move the throttles are removed. Exit code 1 if it is not complete.

    Examples:

      millrace reassign verify plan.json
    """
    from millrace.cli.output import print_json, print_table
    from millrace_broker.cli.reassignment_plans import read_plan, standing

    plan = read_plan(file_text(plan_file))
    with admin_client(bootstrap_server, client_config) as admin:
        moving = admin.list_partition_reassignments()
        found = standing(plan, _present(admin, {each.topic for each in plan}, may_lack=True), moving)
        is_over = not any(each.state == "in progress" for each in found)
        if is_over and not keep_throttle:
            _unlimit(admin, {each.topic for each in plan}, moving)
    rows = [(_name(each.partition), each.state, ",".join(map(str, each.replicas))) for each in found]
    if as_json:
        print_json([dict(zip(("partition", "state", "replicas"), row, strict=True)) for row in rows])
    else:
        print_table(["PARTITION", "STATE", "REPLICAS"], rows)
    if any(each.state != "complete" for each in found):
        raise typer.Exit(1)


@app.command()
def cancel(
    plan_file: PlanFile,
    keep_throttle: Annotated[bool, typer.Option("--preserve-throttles", help="Keep the throttles.")] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Cancel the unfinished moves of a plan. Those partitions stay on the brokers that had them.

    Examples:

      millrace reassign cancel plan.json
    """
    from millrace_broker.cli.reassignment_plans import read_plan

    plan = read_plan(file_text(plan_file))
    with admin_client(bootstrap_server, client_config) as admin:
        moving = admin.list_partition_reassignments()
        given_up = [each for each in plan if each in moving]
        if given_up:
            _check(admin.alter_partition_reassignments(dict.fromkeys(given_up)))
        if not keep_throttle:
            _unlimit(admin, {each.topic for each in plan}, moving.keys() - plan.keys())
    typer.echo(f"cancelled {len(given_up)} of {len(plan)} partitions; the others were not moving")


@app.command("list")
def list_reassignments(
    as_json: AsJson = False, bootstrap_server: BootstrapServer = None, client_config: ClientConfigFile = None
) -> None:
    """List the partitions that are moving.

    Examples:

      millrace reassign list
    """
    from millrace.cli.output import print_json, print_table

    with admin_client(bootstrap_server, client_config) as admin:
        moving = admin.list_partition_reassignments()
    rows = [
        (_name(partition), *(",".join(map(str, ids)) for ids in (each.replicas, each.adding, each.removing)))
        for partition, each in sorted(moving.items())
    ]
    if as_json:
        print_json([dict(zip(("partition", "replicas", "adding", "removing"), row, strict=True)) for row in rows])
    else:
        print_table(["PARTITION", "REPLICAS", "ADDING", "REMOVING"], rows)


def _present(admin: Admin, topics: Iterable[str], *, may_lack: bool = False) -> dict[TopicPartition, tuple[int, ...]]:
    from millrace.clients import TopicPartition
    from millrace.errors import UnknownTopicOrPartitionError

    found = {}
    for name in sorted(set(topics)):
        try:
            partitions = admin.describe_topic(name).partitions
        except UnknownTopicOrPartitionError:
            if not may_lack:
                raise
            continue
        found.update({TopicPartition(name, each.partition): each.replicas for each in partitions})
    return found


def _check_alive(admin: Admin, brokers: Iterable[int]) -> dict[int, str]:
    """Raise ``UsageError`` unless all of ``brokers`` are alive. Return the racks of the live brokers."""
    racks = {each.node_id: each.rack for each in admin.describe_cluster().brokers}
    if unknown := sorted(set(brokers) - racks.keys()):
        raise UsageError(f"brokers {unknown} are unknown or not alive; alive are {sorted(racks)}")
    return racks


def _limit(admin: Admin, moves: Mapping[TopicPartition, Move], rate: int) -> None:
    """Set replication throttles before the moves begin, and update those of moves in progress."""
    from millrace_broker.cli.reassignment_plans import throttled_replicas

    brokers = {each for move in moves.values() for each in (*move.senders, *move.receivers)}
    for broker in sorted(brokers):
        admin.alter_configs(str(broker), dict.fromkeys(_RATES, rate), resource="broker")
    for topic, options in throttled_replicas(moves).items():
        admin.alter_configs(topic, options)


def _unlimit(admin: Admin, topics: Iterable[str], moving: Iterable[TopicPartition]) -> None:
    """Remove the throttles of topics without a partition in ``moving``.

    Remove the brokers' throttles if ``moving`` is empty.
    """
    from millrace.errors import UnknownTopicOrPartitionError
    from millrace_broker.cli.reassignment_plans import FOLLOWER_THROTTLED, LEADER_THROTTLED

    busy = {each.topic for each in moving}
    for topic in sorted(set(topics) - busy):
        try:
            admin.alter_configs(topic, delete=[LEADER_THROTTLED, FOLLOWER_THROTTLED])
        except UnknownTopicOrPartitionError:
            continue
    if not busy:
        for broker in admin.describe_cluster().brokers:
            admin.alter_configs(str(broker.node_id), delete=_RATES, resource="broker")


def _check(answers: Mapping[TopicPartition, MillraceError | None]) -> None:
    failed = {partition: error for partition, error in answers.items() if error is not None}
    for partition, error in sorted(failed.items(), key=lambda each: each[0]):
        typer.echo(f"{_name(partition)}: {error.message}", err=True)
    if failed:
        raise next(iter(failed.values()))


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _broker_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(map(is_number, parts)) or len(set(parts)) < len(parts):
        raise UsageError(f"--brokers {text}: expected different ids, separated by commas")
    return [int(part) for part in parts]

"""Commands that show and reset the offsets of Spark queries.

The offsets are in the checkpoints of the queries.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from millrace.errors import UnknownTopicOrPartitionError, UsageError

if TYPE_CHECKING:
    import uuid

    from millrace.cli.group_resets import Wish
    from millrace.clients import Admin
    from pyspark_millrace.checkpoints.query_log import Checkpoint
    from pyspark_millrace.checkpoints.reset import ResetPlan

app = command_group("Show and reset the offsets of Spark queries, in their checkpoints.")

CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", "-c", metavar="DIRECTORY", help="The query's checkpointLocation.")
]


@app.command()
def show(
    checkpoint: CheckpointOption,
    export: Annotated[
        bool, typer.Option("--export", help="Print lines of topic,partition,offset for reset --from-file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a query from its checkpoint, without a broker.

    Examples:

      millrace offsets show --checkpoint /data/flights/_checkpoints/1

      millrace offsets show --checkpoint /data/flights/_checkpoints/1 --export > offsets.csv
    """
    from millrace.cli.output import print_json, print_table
    from millrace.clients.groups.resets import write_plans
    from pyspark_millrace.checkpoints.query_log import read_checkpoint
    from pyspark_millrace.checkpoints.reset import offsets_of

    found = read_checkpoint(checkpoint)
    offsets = offsets_of(found)
    if export:
        typer.echo(write_plans({found.query_id: offsets}), nl=False)
    elif as_json:
        print_json(
            {
                "query": found.query_id,
                "batch": found.newest.batch_id,
                "finished": not found.is_pending,
                "offsets": [
                    {"topic": topic, "partition": partition, "offset": offset}
                    for (topic, partition), offset in offsets.items()
                ],
            }
        )
    else:
        finished = "not finished: the next start runs it again" if found.is_pending else "finished"
        typer.echo(f"query {found.query_id}, batch {found.newest.batch_id}, {finished}")
        print_table(["TOPIC", "PARTITION", "OFFSET"], [(*partition, offset) for partition, offset in offsets.items()])


@app.command()
def reset(
    checkpoint: CheckpointOption,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,1,2]", help="Only this topic, or some of its partitions. Repeatable."
        ),
    ] = None,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    from_file: FromFile = None,
    drop_pending: Annotated[
        bool, typer.Option("--drop-pending", help="Drop the last batch, which is not finished.")
    ] = False,
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Reset a query with state, although its state stays.")
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Set the offsets at which a stopped query continues. The content of its sink stays as it is.

    Examples:

      millrace offsets reset --checkpoint /data/flights/_checkpoints/1 --to-datetime 2026-05-01T00:00

      millrace offsets reset --checkpoint /data/flights/_checkpoints/1 --topic flights:0 --shift-by -1000 --execute
    """
    from millrace.cli.group_resets import Wish
    from pyspark_millrace.checkpoints.query_log import read_checkpoint
    from pyspark_millrace.checkpoints.reset import execute_reset

    wish = Wish.of(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_datetime=to_datetime,
        by_duration=by_duration,
        shift_by=shift_by,
        from_file=from_file,
    )
    with admin_client(bootstrap_server, client_config) as admin:
        plan = plan_of_wish(admin, read_checkpoint(checkpoint), wish, topic or [])
    backup = None
    if execute:
        backup = execute_reset(plan, datetime.now(UTC), drop_pending=drop_pending, keep_state=keep_state)
    _show_plan(plan, backup, as_json=as_json)


def plan_of_wish(admin: Admin, checkpoint: Checkpoint, wish: Wish, topics: list[str]) -> ResetPlan:
    """Plan the reset of a command line, for some topics or all. Raises ``UsageError`` and the client's errors."""
    from millrace.cli.group_resets import bounds_of, chosen_partitions
    from millrace.clients.groups.resets import Target, decide, read_plans
    from millrace.config.client import Isolation
    from pyspark_millrace.checkpoints.reset import offsets_of, plan_reset

    old = offsets_of(checkpoint)
    before = {topic: id_ for source in checkpoint.newest.sources if source for topic, id_ in source.topic_ids.items()}
    now = _topics_now(admin, before)
    there = {partition: offset for partition, offset in old.items() if partition.topic in now}
    same = {partition: offset for partition, offset in there.items() if now[partition.topic] == before[partition.topic]}
    chosen = chosen_partitions(admin, topics) if topics else sorted(there)
    # Limit offsets to the last stable offset: a start beyond it would look like a truncated log.
    if wish.file is not None:
        wanted = read_plans(_text_of(wish.file), [checkpoint.query_id], str(wish.file))[checkpoint.query_id]
        bounds = bounds_of(admin, sorted(wanted), {}, None, isolation_level=Isolation.READ_COMMITTED)
        new = {
            partition: decide(Target.OFFSET, {partition: bounds[partition]}, offset)[partition]
            for partition, offset in wanted.items()
            if not topics or partition in chosen
        }
    else:
        assert wish.target is not None
        bounds = bounds_of(admin, chosen, same, wish.when, isolation_level=Isolation.READ_COMMITTED)
        new = decide(wish.target, bounds, wish.number)
    return plan_reset(checkpoint, new, now)


def _topics_now(admin: Admin, topics: dict[str, uuid.UUID]) -> dict[str, uuid.UUID]:
    """Return the ids of the topics that still exist."""
    found = {}
    for name in topics:
        try:
            found[name] = admin.describe_topic(name).topic_id
        except UnknownTopicOrPartitionError:
            typer.echo(f"topic {name} no longer exists: its partitions are left out", err=True)
    return found


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--from-file {file}: {error.strerror}") from error


def _show_plan(plan: ResetPlan, backup: Path | None, *, as_json: bool) -> None:
    from millrace.cli.output import print_json, print_table

    if as_json:
        print_json(
            {
                "query": plan.checkpoint.query_id,
                "batch": plan.batch_id,
                "executed": backup is not None,
                "backup": backup and str(backup),
                "offsets": [
                    {**each.partition._asdict(), "old_offset": each.old, "new_offset": each.new}
                    for each in plan.partitions
                ],
            }
        )
        return
    rows: list[tuple[Any, ...]] = [
        (*each.partition, each.old, each.new, None if None in (each.old, each.new) else each.new - each.old)  # type: ignore[operator]
        for each in plan.partitions
    ]
    print_table(["TOPIC", "PARTITION", "OLD-OFFSET", "NEW-OFFSET", "CHANGE"], rows)
    if backup is None:
        typer.echo("nothing was changed: --execute does it", err=True)
    else:
        typer.echo(f"batch {plan.batch_id} of the query sets these offsets when it starts; copy of the logs: {backup}")

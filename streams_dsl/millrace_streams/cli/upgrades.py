"""Commands of ``millrace streams`` for the state of a checkpoint.

The commands export, rebuild or reset the state.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client, client_config
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
from millrace.errors import UsageError
from millrace_streams.cli.options import DEFAULT_SERVER, BatchOption, CheckpointOption

if TYPE_CHECKING:
    from pyspark_millrace.checkpoints.query_log import Checkpoint
    from pyspark_millrace.checkpoints.reset import ResetPlan


def export_state(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store's name; `stores` lists them.")],
    checkpoint: CheckpointOption,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Parquet file, or file with lines of JSON (.json, .jsonl)."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Typed topic with these columns. It is created if it does not exist."
        ),
    ] = None,
    batch: BatchOption = None,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Write the content of a store to a file or a topic. The query may be running or stopped.

    The columns are those of the key, its window if it has one, the value, and the time. The store of an operator, such
    as a join's waiting records, has the columns of its state. A file appears only when it is complete, and a topic gets
    all rows in one transaction.

    Examples:

      millrace streams export-state word-counts -c /data/words-checkpoint --output words.parquet

      millrace streams export-state word-counts -c /data/words-checkpoint --topic words-now
    """
    if (output is None) == (topic is None):
        raise UsageError("give the target: --output FILE, or --topic TOPIC")
    from millrace_streams.queries import open_state
    from millrace_streams.upgrades.export import rows_of, write_file, write_topic

    with open_state(checkpoint, batch=batch) as state:
        found = state.store(store)
        rows = rows_of(found)
        number = state.batch_id
    if output is not None:
        write_file(rows, output)
    else:
        from millrace.config.client import ProducerConfig

        assert topic is not None
        client = client_config(ProducerConfig, bootstrap_server, client_config_file)
        write_topic(rows, topic, found.described.layout.key, client)
    typer.echo(f"{rows.height:,} rows of {store} after batch {number} -> {output or f'topic {topic}'}", err=True)


def reset(
    checkpoint: CheckpointOption,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    from_file: FromFile = None,
    execute: Execute = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config_file: ClientConfigFile = None,
) -> None:
    """Reset a stopped application: delete its state, and let it read from its beginning or from a given position.

    The old checkpoint is kept beside the new one until you remove it. Tables and topics keep their content. Rows of an
    upserted table are overwritten, but appended rows and records of topics come twice unless you remove them first.
    Without a position the command needs no broker, and the next start reads from startingOffsets (by default the
    earliest).

    Examples:

      millrace streams reset --checkpoint /data/words-checkpoint

      millrace streams reset --checkpoint /data/words-checkpoint --to-datetime 2026-05-01T00:00 --execute
    """
    from millrace_streams.checkpoints.swap import stopped_checkpoint
    from millrace_streams.upgrades.reset import execute_reset
    from pyspark_millrace.checkpoints.query_log import checkpoint_directory

    directory = checkpoint_directory(checkpoint)
    found = stopped_checkpoint(directory)
    options = {
        "to_earliest": to_earliest,
        "to_latest": to_latest,
        "to_offset": to_offset,
        "to_datetime": to_datetime,
        "by_duration": by_duration,
        "shift_by": shift_by,
        "from_file": from_file,
    }
    plan = None
    if any(value not in (None, False) for value in options.values()):
        plan = _positions(found, options, bootstrap_server, client_config_file)
    kept = execute_reset(directory, datetime.now(UTC), plan) if execute else None
    _show_reset(found, plan, kept, as_json=as_json)


def rebuild(
    checkpoint: CheckpointOption,
    topology: Annotated[
        str, typer.Option("--topology", metavar="WHERE", help="module:function, or path/file.py[:function].")
    ],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="Option of the source. Repeatable.")
    ] = None,
    puts_aside: Annotated[
        bool,
        typer.Option("--leave-out-failing", help="Leave out records that fail, as a job with --dead-letters does."),
    ] = False,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Rebuild the state of a stopped application from its topics, for example for a changed topology.

    The command runs the topology from the earliest records to the offsets of the old checkpoint, in a new checkpoint
    and without writing results. The new checkpoint then replaces the old one, which is kept. If the command is killed,
    run it again and it continues. Until its end the old checkpoint is not changed.

    Examples:

      millrace streams rebuild --checkpoint /data/words-checkpoint --topology jobs/word_count.py

      millrace streams rebuild -c /data/c --topology my_package.hours:topology -o maxOffsetsPerTrigger=500000
    """
    from pyspark.sql import SparkSession

    from millrace.cli.options import name_values
    from millrace.cli.secret_options import is_client_secret, refuse_secrets
    from millrace_streams.application import load_topology
    from millrace_streams.upgrades.rebuild import rebuild as rebuild_state
    from pyspark_millrace import session
    from pyspark_millrace.checkpoints.query_log import checkpoint_directory

    options = name_values(option, "--option")
    refuse_secrets(options, "--option", is_secret=is_client_secret, file=None)
    active = SparkSession.getActiveSession()
    spark = active or session("millrace streams rebuild", checkpoint_root=checkpoint_directory(checkpoint).parent)
    if active is None:
        spark.sparkContext.setLogLevel("ERROR")
    kept = rebuild_state(
        load_topology(topology),
        spark,
        checkpoint=checkpoint,
        bootstrap_servers=bootstrap_server or DEFAULT_SERVER,
        now=datetime.now(UTC),
        options=options,
        puts_aside=puts_aside,
        on_batch=lambda batch: typer.echo(f"batch {batch.batch_id}: {batch.records:,} records", err=True),
    )
    typer.echo(f"{checkpoint} has new state; the old checkpoint is kept in {kept}")


def _positions(
    checkpoint: Checkpoint, options: dict[str, Any], bootstrap_server: str | None, client_config_file: Path | None
) -> ResetPlan:
    from millrace.cli.group_resets import Wish
    from pyspark_millrace.cli.offsets import plan_of_wish

    with admin_client(bootstrap_server, client_config_file) as admin:
        return plan_of_wish(admin, checkpoint, Wish.of(**options), [])


def _show_reset(checkpoint: Checkpoint, plan: ResetPlan | None, kept: Path | None, *, as_json: bool) -> None:
    from millrace.cli.output import print_json, print_table
    from millrace_streams.checkpoints.files import MountedFiles
    from millrace_streams.checkpoints.manifest import read_manifest
    from pyspark_millrace.checkpoints.reset import offsets_of

    if plan is not None:
        offsets = {each.partition: (each.old, each.new) for each in plan.partitions}
    else:
        old = offsets_of(checkpoint) if checkpoint.entries else {}
        offsets = {partition: (offset, None) for partition, offset in old.items()}
    manifest = read_manifest(MountedFiles(kept or checkpoint.directory))
    stores = [] if manifest is None else [store.name for store in manifest.stores]
    if as_json:
        rows = [{**part._asdict(), "old_offset": old, "new_offset": new} for part, (old, new) in offsets.items()]
        print_json({"executed": kept is not None, "kept": kept and str(kept), "stores": stores, "offsets": rows})
        return
    print_table(
        ["TOPIC", "PARTITION", "OLD-OFFSET", "NEW-OFFSET"],
        [(*part, old, "the beginning" if new is None else new) for part, (old, new) in offsets.items()],
    )
    typer.echo(f"deleted stores: {', '.join(stores) or 'none'}")
    if kept is None:
        typer.echo("nothing was changed: --execute makes the change", err=True)
    else:
        typer.echo(f"the old checkpoint is kept in {kept}")

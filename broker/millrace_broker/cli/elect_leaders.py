"""``millrace elect-leaders``, for preferred and unclean leader elections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client
from millrace.cli.tool_files import file_text, json_object, list_of, partition_of
from millrace.errors import ElectionNotNeededError, UsageError

if TYPE_CHECKING:
    from millrace.clients import TopicPartition


def elect_leaders(
    topic: Annotated[str | None, typer.Option(help="Topic, or with --partition one of its partitions.")] = None,
    partition: Annotated[
        int | None, typer.Option(help="Partition of the topic. The default is all of its partitions.")
    ] = None,
    all_partitions: Annotated[bool, typer.Option("--all", help="All partitions of all topics.")] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--path-to-json-file", help='As Kafka\'s: {"partitions": [{"topic": "orders", "partition": 0}]}.'),
    ] = None,
    election: Annotated[
        str, typer.Option("--type", help="preferred, or unclean: a replica outside the ISR may become the leader.")
    ] = ("preferred"),
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Elect leaders of partitions.

    An unclean election loses the records that the new leader does not have. It runs only for partitions without a
    leader, which have no live replica in the ISR.

    Examples:

      millrace elect-leaders --all

      millrace elect-leaders --type unclean --topic orders --partition 3
    """
    from millrace.cli.output import print_json, print_table
    from millrace.clients import TopicPartition

    if [topic is not None, all_partitions, json_file is not None].count(True) != 1:
        raise UsageError("name the partitions: --topic (and --partition), --path-to-json-file, or --all")
    if partition is not None and topic is None:
        raise UsageError("--partition needs --topic")
    with admin_client(bootstrap_server, client_config) as admin:
        wanted = None
        if topic is not None:
            numbers = range(admin.describe_topic(topic).num_partitions) if partition is None else [partition]
            wanted = [TopicPartition(topic, number) for number in numbers]
        elif json_file is not None:
            wanted = _partitions(json_file)
        answers = admin.elect_leaders(wanted, election=election)
    rows = [
        (
            f"{each.topic}-{each.partition}",
            "elected"
            if error is None
            else "not needed"
            if isinstance(error, ElectionNotNeededError)
            else error.message,
        )
        for each, error in sorted(answers.items(), key=lambda item: item[0])
    ]
    if as_json:
        print_json([{"partition": name, "outcome": outcome} for name, outcome in rows])
    elif rows:
        print_table(["PARTITION", "OUTCOME"], rows)
    else:
        typer.echo("no partition needs an election")
    if any(error is not None and not isinstance(error, ElectionNotNeededError) for error in answers.values()):
        raise typer.Exit(1)


def _partitions(file: Path) -> list[TopicPartition]:
    content = json_object(file_text(file), file)
    try:
        found = [partition_of(each) for each in list_of(content["partitions"])]
    except (KeyError, TypeError) as error:
        raise UsageError(
            f'{file} names no partitions ({error!r}): expected {{"partitions": [{{"topic": ..., "partition": ...}}]}}'
        ) from None
    if not found or len(set(found)) < len(found):
        raise UsageError(f"{file} names no partition, or a partition twice")
    return found

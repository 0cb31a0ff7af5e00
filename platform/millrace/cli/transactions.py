"""List, describe and end transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client
from millrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millrace.clients import Admin, TopicPartition

app = command_group("List, describe and end transactions.")

_MINUTE_MS: Final = 60_000

Topic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The partition's topic.")]
Partition = Annotated[int, typer.Option("--partition", "-p", min=0, metavar="N", help="The partition.")]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only transactions in this state: Ongoing, Empty, PrepareCommit... Repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option(help="Only transactions of this producer id. Repeatable.")
    ] = None,
    duration_filter: Annotated[
        int,
        typer.Option(
            metavar="MS",
            help="Only ids whose last transaction began longer ago than this time. As in Kafka, it may have ended "
            "since; add --state Ongoing for open ones. 0 or less: all.",
        ),
    ] = -1,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """List transactional ids and the states of their transactions.

    Examples:

      millrace transactions list --state Ongoing
    """
    with admin_client(bootstrap_server, client_config) as admin:
        found = admin.list_transactions(
            states=state or (), producer_ids=producer_id or (), duration_ms_min=duration_filter
        )
    _show(
        ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"),
        [(each.transactional_id, each.coordinator_id, each.producer_id, each.state) for each in found],
        as_json=as_json,
    )


@app.command()
def describe(
    transactional_id: Annotated[list[str], typer.Option(metavar="ID", help="Transactional id. Repeatable.")],
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Describe the open transactions of transactional ids: their start and their partitions.

    Examples:

      millrace transactions describe --transactional-id billing-1
    """
    with admin_client(bootstrap_server, client_config) as admin:
        found = admin.describe_transactions(transactional_id)
    now_ms = time.time_ns() // 1_000_000
    rows = []
    for each in found.values():
        is_open = each.start_time_ms >= 0
        rows.append(
            (
                each.coordinator_id,
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.state,
                each.timeout_ms,
                each.start_time_ms if is_open else None,
                now_ms - each.start_time_ms if is_open else None,
                ",".join(map(str, sorted(each.partitions))),
            )
        )
    names = (
        "CoordinatorId",
        "TransactionalId",
        "ProducerId",
        "ProducerEpoch",
        "TransactionState",
        "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs",
        "TransactionDurationMs",
        "TopicPartitions",
    )
    _show(names, rows, as_json=as_json)


@app.command("describe-producers")
def describe_producers(
    topic: Topic,
    partition: Partition,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Describe the producers in the state of a partition, with the start offsets of their open transactions.

    Examples:

      millrace transactions describe-producers --topic orders --partition 0
    """
    with admin_client(bootstrap_server, client_config) as admin:
        ((_, found),) = admin.describe_producers([(topic, partition)]).items()
    names = (
        "ProducerId",
        "ProducerEpoch",
        "LatestCoordinatorEpoch",
        "LastSequence",
        "LastTimestamp",
        "CurrentTransactionStartOffset",
    )
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp_ms,
            each.transaction_start_offset if each.transaction_start_offset >= 0 else None,
        )
        for each in found
    ]
    _show(names, rows, as_json=as_json)


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only transactions in this topic. Repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only transactions in this partition.")
    ] = None,
    max_transaction_timeout: Annotated[
        int, typer.Option(min=0, metavar="MINUTES", help="Leave out producers that have written within this time.")
    ] = 15,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Find hanging transactions: they are open in a partition, but no coordinator knows them, and they block readers.

    Examples:

      millrace transactions find-hanging --topic orders
    """
    if partition is not None and len(topic or ()) != 1:
        raise UsageError("--partition needs exactly one --topic")
    now_ms = time.time_ns() // 1_000_000
    with admin_client(bootstrap_server, client_config) as admin:
        partitions = _partitions(admin, topic, partition)
        found = admin.find_hanging_transactions(
            partitions, last_written_before_ms=now_ms - max_transaction_timeout * _MINUTE_MS
        )
    names = (
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
        "Duration(min)",
    )
    rows = [
        (
            each.partition.topic,
            each.partition.partition,
            each.producer.producer_id,
            each.producer.producer_epoch,
            each.producer.coordinator_epoch,
            each.producer.transaction_start_offset,
            each.producer.last_timestamp_ms,
            (now_ms - each.producer.last_timestamp_ms) // _MINUTE_MS,
        )
        for each in found
    ]
    _show(names, rows, as_json=as_json)


def _partitions(admin: Admin, topics: list[str] | None, partition: int | None) -> list[TopicPartition]:
    from millrace.clients import TopicPartition

    if partition is not None and topics:
        return [TopicPartition(topics[0], partition)]
    described = [admin.describe_topic(name) for name in topics] if topics else admin.list_topics(include_internal=True)
    return [TopicPartition(each.name, number) for each in described for number in range(each.num_partitions)]


@app.command()
def abort(
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int | None,
        typer.Option(min=0, metavar="OFFSET", help="Offset of the first record of the transaction in the partition."),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option(help="Producer id, with --producer-epoch and --coordinator-epoch, instead of --start-offset."),
    ] = None,
    producer_epoch: Annotated[int | None, typer.Option(help="The producer's epoch.")] = None,
    coordinator_epoch: Annotated[int | None, typer.Option(help="The coordinator's epoch.")] = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Abort a hanging transaction of a partition. Use find-hanging to find it.

    Examples:

      millrace transactions abort --topic orders --partition 0 --start-offset 4711
    """
    by_producer = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == all(each is None for each in by_producer):
        raise UsageError(
            "name the transaction: --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch together"
        )
    with admin_client(bootstrap_server, client_config) as admin:
        if start_offset is not None:
            admin.abort_transaction((topic, partition), start_offset=start_offset)
            return
        if producer_id is None or producer_epoch is None or coordinator_epoch is None:
            raise UsageError("--producer-id, --producer-epoch and --coordinator-epoch must be given together")
        admin.write_abort_marker(
            (topic, partition),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )


def _show(names: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool) -> None:
    """Print a table with the columns of Kafka's tool, in which ``None`` is an absent value, or JSON."""
    from millrace.cli.output import print_json, print_table

    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, [["None" if cell is None else cell for cell in row] for row in rows])

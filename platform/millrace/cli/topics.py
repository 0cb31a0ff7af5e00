"""Create, list, describe, change and delete topics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client, is_number, name_values
from millrace.errors import UsageError
from millrace.ids import id_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from millrace.cli.partition_views import Trouble
    from millrace.clients import Admin, ConfigValue, TopicDescription

app = command_group("Create, list and change topics.")

_LIMITS = ("flush.messages", "flush.ms", "min.insync.replicas")
_BEFORE_ACK = "flush.before.ack"
_NO_LIMIT = 2**63 - 1

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help="Schema file: .ddl, .sql, .json, .avsc, .proto, .parquet or .arrow."),
]
SchemaDdl = Annotated[
    str | None, typer.Option("--ddl", metavar="TEXT", help="Schema as DDL: 'id BIGINT NOT NULL, name STRING'.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="Option of the topic. Repeatable.")
]


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option(help="Show internal topics too.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """List topics.

    Examples:

      millrace topics list

      millrace topics list --json | jq '.[].name'
    """
    from millrace.cli.output import print_json, print_table

    with admin_client(bootstrap_server, client_config) as admin:
        topics = admin.list_topics(include_internal=internal)
    if as_json:
        print_json([_summary(topic) for topic in topics])
    else:
        rows = [(topic.name, topic.num_partitions, _kind(topic), ", ".join(topic.key_columns)) for topic in topics]
        print_table(["TOPIC", "PARTITIONS", "SCHEMA", "KEY"], rows)


def _kind(topic: TopicDescription) -> str:
    if topic.schema is None:
        return "opaque"
    return f"{len(topic.schema)} columns, version {topic.schema_version}"


def _summary(topic: TopicDescription) -> dict[str, Any]:
    from millrace.schemas import to_ddl

    return {
        "name": topic.name,
        "topic_id": id_text(topic.topic_id),
        "partitions": topic.num_partitions,
        "schema_id": topic.schema_id,
        "schema_version": topic.schema_version,
        "schema": None if topic.schema is None else to_ddl(topic.schema),
        "key_columns": list(topic.key_columns),
        "is_internal": topic.is_internal,
    }


@app.command()
def create(
    name: Name,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="Number; -1: the broker's default.")] = -1,
    schema: SchemaFile = None,
    ddl: SchemaDdl = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="COLUMN", help="Key column. Repeatable.")
    ] = None,
    config: Settings = None,
    replication_factor: Annotated[int, typer.Option(help="Replicas of each partition; -1: the broker's default.")] = -1,
    replica_assignment: Annotated[
        str | None,
        typer.Option(metavar="1:2,2:3", help="Brokers of each partition, preferred leader first, instead of numbers."),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Create a topic: typed with a schema, opaque (key and value are bytes) without one.

    Examples:

      millrace topics create clicks --partitions 4

      millrace topics create orders --ddl 'id BIGINT NOT NULL, city STRING, price DECIMAL(10,2)' --key id

      millrace topics create flights --schema flights.parquet -c retention.ms=-1
    """
    from millrace.errors import TopicExistsError

    with admin_client(bootstrap_server, client_config) as admin:
        try:
            topic = admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                assignment=None if replica_assignment is None else _assignment(replica_assignment),
                schema=schema_of_options(schema, ddl),
                key_columns=key or (),
                configs=name_values(config, "--config"),
            )
        except TopicExistsError:
            if not if_not_exists:
                raise
            typer.echo(f"topic {name} already exists")
            return
    count = topic.num_partitions
    typer.echo(f"created topic {name}: {count} partition{'s' if count > 1 else ''}, {_kind(topic)}")


def _assignment(text: str) -> dict[int, list[int]]:
    """Parse brokers by partition, in the form of Kafka's tool; raises ``UsageError``."""
    parts = [part.split(":") for part in text.split(",")]
    if not all(is_number(broker.strip()) for part in parts for broker in part):
        raise UsageError(f"--replica-assignment {text}: expected ids, 1:2,2:3 for two partitions of two replicas")
    return {number: [int(broker) for broker in part] for number, part in enumerate(parts)}


def schema_of_options(file: Path | None, ddl: str | None) -> pa.Schema | None:
    """Return the schema of ``--schema`` or ``--ddl``, if given; raises ``UsageError``, ``SchemaError``."""
    from millrace.schemas import parse_ddl, parse_schema

    if file is not None and ddl is not None:
        raise UsageError("--schema and --ddl: give one of them")
    if ddl is not None:
        return parse_ddl(ddl)
    return None if file is None else parse_schema(file)


@app.command()
def describe(
    name: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Name of the topic. Default: all topics.")] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with a replica outside the ISR.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a live leader.")
    ] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr-partitions", help="Only partitions whose ISR is below min.insync.replicas.")
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr-partitions", help="Only partitions whose ISR is exactly min.insync.replicas.")
    ] = False,
    with_overrides: Annotated[
        bool, typer.Option("--topics-with-overrides", help="Only topics with options of their own, and these options.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Describe a topic: its schema, configuration and partitions with their offsets.

    Without a topic, the partitions of all topics are listed. The options select some of the partitions.

    Examples:

      millrace topics describe orders

      millrace topics describe --under-replicated-partitions
    """
    from millrace.cli.partition_views import Trouble

    asked = dict(zip(Trouble, (under_replicated, unavailable, under_min_isr, at_min_isr), strict=True))
    troubles = [trouble for trouble, is_asked in asked.items() if is_asked]
    if len(troubles) + with_overrides > 1:
        raise UsageError("give one of the options that choose partitions or topics")
    if name is None or troubles or with_overrides:
        _list_partitions(name, troubles, bootstrap_server, client_config, overrides=with_overrides, as_json=as_json)
        return
    with admin_client(bootstrap_server, client_config) as admin:
        described = _describe(admin, name)
    if as_json:
        from millrace.cli.output import print_json

        print_json(described)
    else:
        _print_description(described)


def _list_partitions(
    name: str | None,
    troubles: Sequence[Trouble],
    bootstrap_server: str | None,
    client_config: Path | None,
    *,
    overrides: bool,
    as_json: bool,
) -> None:
    from millrace.cli import partition_views

    with admin_client(bootstrap_server, client_config) as admin:
        topics = admin.list_topics(include_internal=True) if name is None else [admin.describe_topic(name)]
        if overrides:
            partition_views.print_overrides(partition_views.overrides(admin, topics), as_json=as_json)
        else:
            found = partition_views.views(admin, topics, troubles[0] if troubles else None)
            partition_views.print_views(found, as_json=as_json)


def _describe(admin: Admin, name: str) -> dict[str, Any]:
    from millrace.clients import TopicPartition

    topic = admin.describe_topic(name)
    numbers = [TopicPartition(name, info.partition) for info in topic.partitions]
    led = [number for number, info in zip(numbers, topic.partitions, strict=True) if info.leader >= 0]
    first = admin.list_offsets(dict.fromkeys(led, "earliest"))
    end = admin.list_offsets(dict.fromkeys(led, "latest"))
    configs = admin.describe_configs(name)
    partitions = [
        {
            "partition": info.partition,
            "leader": info.leader,
            "replicas": list(info.replicas),
            "isr": list(info.isr),
            "first_offset": first[number].offset if number in first else None,
            "end_offset": end[number].offset if number in end else None,
            "records": end[number].offset - first[number].offset if number in first else None,
        }
        for number, info in zip(numbers, topic.partitions, strict=True)
    ]
    return {
        **_summary(topic),
        "columns": [] if topic.schema is None else _columns(topic),
        "configs": {option: value.value for option, value in configs.items() if "TOPIC" in value.source},
        "durability": _durability(configs),
        "partitions": partitions,
    }


def _durability(configs: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """Return the durability options, and whether records are synced before the acknowledgement."""
    limits = {option: _limit(configs[option].value) for option in _LIMITS}
    before_ack = _BEFORE_ACK in configs and configs[_BEFORE_ACK].value == "true"
    is_synced = before_ack or limits["flush.messages"] == 1
    return {"synced_before_ack": is_synced, _BEFORE_ACK: before_ack, **limits}


def _limit(value: str | None) -> int | None:
    """Return a limit as a number; None if it is unlimited."""
    number = int(value or _NO_LIMIT)
    return None if number >= _NO_LIMIT else number


def _durability_text(durability: dict[str, Any]) -> str:
    """Describe the durability of acknowledged records."""
    records, milliseconds, replicas = (durability[option] for option in _LIMITS)
    if durability["synced_before_ack"]:
        synced = "and synced to disk before they are acknowledged and read"
    else:
        when = [f"every {records:,} records"] if records is not None else []
        when += [f"every {milliseconds:,} ms"] if milliseconds is not None else []
        synced = f"and synced to disk {' and '.join(when) or 'when the operating system does it'}"
    options = [f"{_BEFORE_ACK}={str(durability[_BEFORE_ACK]).lower()}"]
    options += [f"{option}={'none' if durability[option] is None else durability[option]}" for option in _LIMITS]
    held = "1 replica" if replicas == 1 else f"{replicas} replicas"
    shown = f"{', '.join(options[:2])},\n {', '.join(options[2:])}"
    return f"Records acknowledged with acks=all are on at least {held},\n{synced}\n({shown})"


def _columns(topic: TopicDescription) -> list[dict[str, Any]]:
    from millrace.schemas import spark_name

    return [
        {
            "name": field.name,
            "type": spark_name(field.type),
            "nullable": field.nullable,
            "is_key": field.name in topic.key_columns,
            "comment": ((field.metadata or {}).get(b"comment") or b"").decode() or None,
        }
        for field in topic.schema or ()
    ]


def _print_description(described: dict[str, Any]) -> None:
    from millrace.cli.output import print_table

    typer.echo(f"{described['name']}  id {described['topic_id']}")
    if described["columns"]:
        typer.echo(f"\nSchema {described['schema_id']}, version {described['schema_version']}")
        print_table(
            ["COLUMN", "TYPE", "NULL", "KEY", "COMMENT"],
            [
                (
                    column["name"],
                    column["type"],
                    "" if column["nullable"] else "NOT NULL",
                    "key" if column["is_key"] else "",
                    column["comment"],
                )
                for column in described["columns"]
            ],
        )
    else:
        typer.echo("Opaque: key and value are bytes")
    typer.echo(f"\nDurability\n{_durability_text(described['durability'])}")
    if described["configs"]:
        typer.echo("\nConfiguration")
        print_table(["OPTION", "VALUE"], sorted(described["configs"].items()))
    typer.echo("\nPartitions")
    print_table(
        ["PARTITION", "LEADER", "REPLICAS", "IN SYNC", "FIRST OFFSET", "END OFFSET", "RECORDS"],
        [
            (
                row["partition"],
                row["leader"],
                ",".join(map(str, row["replicas"])),
                ",".join(map(str, row["isr"])),
                row["first_offset"],
                row["end_offset"],
                row["records"],
            )
            for row in described["partitions"]
        ],
    )


@app.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="New number of partitions. It can only grow.")
    ] = None,
    replica_assignment: Annotated[
        str | None, typer.Option(metavar="1:2,2:3", help="Brokers of all partitions, the existing partitions first.")
    ] = None,
    config: Settings = None,
    delete_config: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Option to return to its default. Repeatable.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Add partitions to a topic, or change its configuration.

    Examples:

      millrace topics alter orders --partitions 8

      millrace topics alter orders -c retention.ms=86400000 --delete-config segment.bytes
    """
    if partitions is None and not config and not delete_config:
        raise UsageError("nothing to change: give --partitions, --config or --delete-config")
    with admin_client(bootstrap_server, client_config) as admin:
        chosen = _assignment_of_new(admin, name, partitions, replica_assignment)
        if partitions is not None:
            # Validate first, so that a refused request changes nothing.
            admin.create_partitions(name, partitions, assignment=chosen, validate_only=True)
        if config or delete_config:
            settings = name_values(config, "--config")
            admin.alter_configs(name, settings, delete=delete_config or ())
            typer.echo(f"changed the configuration of {name}: {', '.join([*settings, *(delete_config or ())])}")
        if partitions is not None:
            admin.create_partitions(name, partitions, assignment=chosen)
            typer.echo(f"{name} has {partitions} partitions now")


def _assignment_of_new(
    admin: Admin, name: str, partitions: int | None, text: str | None
) -> dict[int, list[int]] | None:
    """Return the assignment of new partitions; the text also lists existing ones, as for Kafka's tool."""
    if text is None:
        return None
    if partitions is None:
        raise UsageError("--replica-assignment needs --partitions, the new number of partitions")
    present = admin.describe_topic(name).num_partitions
    chosen = _assignment(text)
    if len(chosen) != partitions:
        raise UsageError(f"--replica-assignment names {len(chosen)} partitions, and --partitions {partitions}")
    return {number: brokers for number, brokers in chosen.items() if number >= present}


@app.command()
def evolve(
    name: Name,
    schema: SchemaFile = None,
    ddl: SchemaDdl = None,
    add: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only the new columns, as DDL: 'tip DOUBLE, note STRING'.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Add a new version to a typed topic's schema, if its option schema.compatibility allows the change.

    By default nullable columns can be added and dropped. Older records have nulls in new columns.

    Examples:

      millrace topics evolve orders --add 'tip DOUBLE'
    """
    from millrace.schemas import parse_ddl

    if sum(source is not None for source in (schema, ddl, add)) != 1:
        raise UsageError("give one of --add, --ddl and --schema")
    with admin_client(bootstrap_server, client_config) as admin:
        new = schema_of_options(schema, ddl)
        if add is not None:
            now = admin.describe_topic(name).schema
            if now is None:
                raise UsageError(f"topic {name} is opaque: it has no schema that could evolve")
            import pyarrow as pa

            new = pa.schema([*now, *parse_ddl(add)])
        version = admin.evolve_schema(name, new)
    typer.echo(f"{name} has version {version.version} of its schema now (id {version.id})")


@app.command("delete-records")
def delete_records(
    name: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Name of the topic.")] = None,
    before: Annotated[
        list[str] | None,
        typer.Option(
            "--before",
            metavar="[PARTITION:]OFFSET",
            help="Delete the records before this offset, or all with 'latest'. Without a partition: of all partitions.",
        ),
    ] = None,
    offset_json_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='As Kafka\'s: {"partitions": [{"topic", "partition", "offset"}]}.'),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Delete the records of a topic before an offset permanently. Topics with cleanup.policy=compact alone are refused.

    Examples:

      millrace topics delete-records clicks --before 0:1500 --before 1:latest

      millrace topics delete-records clicks --before latest --yes

      millrace topics delete-records --offset-json-file offsets.json
    """
    from millrace.cli.record_deletion import print_starts, wanted_offsets

    with admin_client(bootstrap_server, client_config) as admin:
        wanted = wanted_offsets(admin, name, before or [], offset_json_file)
        if not yes and sys.stdin.isatty():
            typer.confirm(f"Delete records of {len(wanted)} partitions for good?", abort=True)
        print_starts(admin.delete_records(wanted), as_json=as_json)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Delete topics with all their records.

    Examples:

      millrace topics delete clicks --yes
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(names)} with all records?", abort=True)
    with admin_client(bootstrap_server, client_config) as admin:
        admin.delete_topics(names)
    for name in names:
        typer.echo(f"deleted topic {name}")

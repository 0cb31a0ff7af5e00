"""List, show, check, change, import and export schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client
from millrace.cli.topics import SchemaDdl, SchemaFile, evolve, schema_of_options
from millrace.errors import IncompatibleSchemaError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.clients import Admin, RegisteredSchema, TopicSchema
    from millrace.schemas import SchemaChange

app = command_group("List, show, check, change, import and export schemas of typed topics and of payloads.")
app.command("evolve")(evolve)


class Form(StrEnum):
    """Output formats of a schema."""

    DDL = "ddl"
    ARROW = "arrow"
    AVRO = "avro"
    JSON = "json"
    PROTOBUF = "protobuf"


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of a typed topic.")]
Version = Annotated[
    int | None, typer.Option("--version", "-v", help="Version of the schema. The default is the newest.")
]
AsForm = Annotated[Form, typer.Option("--as", help="Format of the output.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write. The default is standard output.")
]


@app.command("list")
def list_schemas(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Typed topic whose versions are listed.")
    ] = None,
    payloads: Annotated[bool, typer.Option("--payloads", help="List the schemas of payloads.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """List the versions of a topic's schema, or the newest of all typed topics, or the schemas of payloads.

    Examples:

      millrace schemas list

      millrace schemas list orders

      millrace schemas list --payloads
    """
    from millrace.cli.output import print_json, print_table

    with admin_client(bootstrap_server, client_config) as admin:
        columns, rows = _payload_rows(admin) if payloads else _topic_rows(admin, topic)
    if as_json:
        print_json([dict(zip(map(str.lower, columns), row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)


def _topic_rows(admin: Admin, topic: str | None) -> tuple[list[str], list[tuple[Any, ...]]]:
    from millrace.schemas import to_ddl

    if topic is None:
        known = [each for each in admin.list_topics() if each.schema is not None]
        rows = [(each.name, each.schema_version, each.schema_id, to_ddl(each.schema)) for each in known]
        return ["TOPIC", "VERSION", "ID", "SCHEMA"], rows
    mode = admin.describe_configs(topic)["schema.compatibility"].value
    versions = [(each.version, each.id, mode, to_ddl(each.schema)) for each in _versions(admin, topic)]
    return ["VERSION", "ID", "COMPATIBILITY", "SCHEMA"], versions


def _payload_rows(admin: Admin) -> tuple[list[str], list[tuple[Any, ...]]]:
    rows = []
    for each in admin.payload_registry().schemas.values():
        subjects = ", ".join(f"{subject} v{version}" for subject, version in each.subjects)
        rows.append((each.id, each.kind.upper(), subjects, " ".join(each.text.split())[:80]))
    return ["ID", "KIND", "SUBJECTS", "SCHEMA"], rows


def _versions(admin: Admin, topic: str) -> list[TopicSchema]:
    versions: list[TopicSchema] = admin.topic_schemas(topic)
    if not versions:
        raise UsageError(f"topic {topic} is opaque: it has no schema")
    return versions


@app.command()
def show(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Name of a typed topic.")] = None,
    schema_id: Annotated[int | None, typer.Option("--id", help="Id of a schema of payloads.")] = None,
    version: Version = None,
    form: AsForm = Form.DDL,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Show the schema of a topic in any format, or a schema of payloads as it was registered.

    Examples:

      millrace schemas show orders --as avro

      millrace schemas show orders --version 1

      millrace schemas show --id 7
    """
    if (topic is None) == (schema_id is None):
        raise UsageError("give a topic, or --id of a schema of payloads")
    with admin_client(bootstrap_server, client_config) as admin:
        if topic is not None:
            typer.echo(_text(_version(admin, topic, version), form, topic))
        else:
            registry = admin.payload_registry()
            registry.payload_schema(schema_id)
            typer.echo(registry.schemas[schema_id].text)


def _version(admin: Admin, topic: str, version: int | None) -> pa.Schema:
    versions = {each.version: each.schema for each in _versions(admin, topic)}
    if version is not None and version not in versions:
        raise UsageError(f"--version {version}: topic {topic} has {', '.join(map(str, versions))}")
    return versions[version or max(versions)]


def _text(schema: pa.Schema, form: Form, topic: str) -> str:
    from millrace.schemas import to_avro, to_ddl, to_json_schema, to_protobuf

    name = "".join(part[:1].upper() + part[1:] for part in topic.replace("-", "_").replace(".", "_").split("_"))
    if form is Form.DDL:
        return to_ddl(schema)
    if form is Form.AVRO:
        return json.dumps(to_avro(schema, name), indent=2, ensure_ascii=False)
    if form is Form.JSON:
        return json.dumps(to_json_schema(schema, name), indent=2, ensure_ascii=False)
    return to_protobuf(schema, name).rstrip() if form is Form.PROTOBUF else str(schema)


@app.command()
def check(
    topic: Topic,
    schema: SchemaFile = None,
    ddl: SchemaDdl = None,
    compatibility: Annotated[
        str, typer.Option(metavar="MODE", help="Compatibility mode to use instead of the topic's schema.compatibility.")
    ] = "",
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Check whether a schema can be the next version of a topic's, and change nothing. Exit code 1 if it cannot.

    Examples:

      millrace schemas check orders --schema new.avsc

      millrace schemas check orders --ddl 'id BIGINT NOT NULL' --compatibility BACKWARD_TRANSITIVE
    """
    from millrace.cli.output import print_table
    from millrace.schemas import schema_changes

    new = schema_of_options(schema, ddl)
    if new is None:
        raise UsageError("give the schema to check: --schema or --ddl")
    with admin_client(bootstrap_server, client_config) as admin:
        described = admin.describe_topic(topic)
        refused: IncompatibleSchemaError | None = None
        try:
            would_be = admin.check_schema(topic, new, compatibility=compatibility)
        except IncompatibleSchemaError as error:
            refused = error
    changes = schema_changes(described.schema, new, described.key_columns) if described.schema is not None else []
    if changes:
        print_table(["COLUMN", "CHANGE", "BACKWARD", "FORWARD"], [_change_row(change) for change in changes])
    if refused is not None:
        raise refused
    same = would_be.version == described.schema_version
    typer.echo("it is the current version" if same else f"it may be version {would_be.version} of {topic}")


def _change_row(change: SchemaChange) -> tuple[str, ...]:
    return (
        change.column,
        change.what,
        *("yes" if fits else "no" for fits in (change.kind.backward, change.kind.forward)),
    )


@app.command("import")
def import_schemas(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files with schemas, or dumps of a registry as JSON.")
    ],
    schema_id: Annotated[int, typer.Option("--id", help="Id in the payloads; 0: the next free id.")] = 0,
    subject: Annotated[str, typer.Option(help="Subject of the schema.")] = "",
    version: Annotated[int, typer.Option("--version", "-v", help="Version of the subject.")] = 1,
    dump: Annotated[bool, typer.Option("--dump", help="The files are dumps of a Confluent registry.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the schemas, but register nothing.")] = False,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SUBJECT:VERSION", help="Registered subject and version of the reference NAME. Repeatable."
        ),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Register schemas of payloads under the ids by which payloads name them.

    A dump is the answer of a Confluent registry to *GET /schemas*, or the values of its topic, one in each line.

    Examples:

      millrace schemas import --id 7 order.avsc

      millrace schemas import --dump registry.json
    """
    if schema_id and (dump or len(files) > 1):
        raise UsageError("--id is for one file with one schema: a dump contains its ids")
    found = [each for file in files for each in _read_file(file, schema_id, subject, version, dump, reference or ())]
    with admin_client(bootstrap_server, client_config) as admin:
        registered = admin.register_payload_schemas(found, validate_only=dry_run)
    for each in registered:
        typer.echo(f"{'would be' if dry_run else 'registered'} {each.kind} schema {each.id}")


def _read_file(
    file: Path, schema_id: int, subject: str, version: int, is_dump: bool, references: Sequence[str]
) -> list[RegisteredSchema]:
    from millrace.clients import RegisteredSchema
    from millrace.clients.payload_schemas import read_dump
    from millrace.payloads import PayloadKind

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    if is_dump:
        return read_dump(text)
    kinds = {".avsc": PayloadKind.AVRO, ".proto": PayloadKind.PROTOBUF, ".json": PayloadKind.JSON}
    if file.suffix not in kinds:
        raise UsageError(f"{file}: a schema of payloads is an .avsc, .proto or .json (JSON Schema) file")
    return [
        RegisteredSchema(
            id=schema_id,
            kind=kinds[file.suffix],
            text=text,
            references=tuple(map(_reference, references)),
            subjects=((subject, version),) if subject else (),
        )
    ]


def _reference(text: str) -> Any:
    from millrace.clients import SchemaReference

    name, _, target = text.partition("=")
    subject, _, version = target.rpartition(":")
    if not name or not subject or not version.isdecimal():
        raise UsageError(f"--reference {text}: expected NAME=SUBJECT:VERSION")
    return SchemaReference(name=name, subject=subject, version=int(version))


@app.command()
def export(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Name of a typed topic.")] = None,
    payloads: Annotated[bool, typer.Option("--payloads", help="Write all schemas of payloads as a dump.")] = False,
    version: Version = None,
    form: AsForm = Form.AVRO,
    output: Output = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Write a topic's schema as Avro, JSON Schema, Protobuf or DDL, or all schemas of payloads as a registry's dump.

    Examples:

      millrace schemas export orders --as protobuf -o orders.proto

      millrace schemas export --payloads -o registry.json
    """
    if (topic is None) != payloads:
        raise UsageError("give a topic, or --payloads")
    with admin_client(bootstrap_server, client_config) as admin:
        if topic is not None:
            text = _text(_version(admin, topic, version), form, topic)
        else:
            from millrace.clients.payload_schemas import write_dump

            text = json.dumps(write_dump(admin.payload_registry().schemas.values()), indent=2, ensure_ascii=False)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


@app.command()
def delete(
    ids: Annotated[list[int], typer.Argument(metavar="ID...", help="Ids of schemas of payloads.")],
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Delete schemas of payloads. Records with their ids can no longer be decoded.

    Examples:

      millrace schemas delete 7
    """
    with admin_client(bootstrap_server, client_config) as admin:
        admin.delete_payload_schemas(ids)
    typer.echo(f"deleted {', '.join(map(str, ids))}")

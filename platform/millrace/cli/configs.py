"""Show and change configurations and quotas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client, list_changes, name_values
from millrace.config.base import read_properties
from millrace.config.properties import parse_properties
from millrace.errors import UsageError
from millrace.quotas import CLIENT_ID, IP, USER, Match, QuotaEntity, QuotaFilter

if TYPE_CHECKING:
    from millrace.clients import ConfigValue

app = command_group("Show and change configurations.")

_KINDS = {"topics": "topic", "brokers": "broker", "broker-loggers": "broker-logger", "groups": "group"}
_QUOTA_KINDS: Final = {"users": USER, "clients": CLIENT_ID, "ips": IP}
_DEFAULT: Final = "default"

Kind = Annotated[
    str,
    typer.Argument(
        metavar="topics|brokers|broker-loggers|groups|users|clients|ips", help="Kind of the configured entity."
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A topic, a broker's id (with brokers `default`: all brokers), a group, or a user, client id or address "
        "with quotas (`default`: each one without quotas of its own).",
    ),
]
OfClient = Annotated[
    str | None,
    typer.Option("--client", metavar="ID", help="With users: the user's connections with this client id (`default`)."),
]
AddFile = Annotated[
    Path | None,
    typer.Option(
        "--add-file", metavar="FILE", help="Properties file with options to set, such as passwords (`-`: the input)."
    ),
]


@app.command()
def describe(
    kind: Kind,
    name: Name,
    client: OfClient = None,
    all_options: Annotated[bool, typer.Option("--all", help="Show options with default values too.")] = False,
    synonyms: Annotated[
        bool, typer.Option("--synonyms", help="Show the values of all sources, the one that applies first.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Show the options that differ from the defaults, or all options, with the source of each value.

    Examples:

      millrace configs describe topics orders

      millrace configs describe brokers 1 --all --synonyms

      millrace configs describe users alice --client reports
    """
    from millrace.cli.output import print_json, print_table

    if kind in _QUOTA_KINDS:
        _describe_quotas(_entity(kind, name, client), bootstrap_server, client_config, as_json=as_json)
        return
    with admin_client(bootstrap_server, client_config) as admin:
        found = admin.describe_configs(_resource_name(kind, name), resource=_resource(kind))
    shown = {
        option: value for option, value in sorted(found.items()) if all_options or value.source != "DEFAULT_CONFIG"
    }
    columns = ["name", "value", "source"]
    rows = [[option, _shown(value, value.value), value.source] for option, value in shown.items()]
    if synonyms:
        columns.append("synonyms")
        for row, value in zip(rows, shown.values(), strict=True):
            row.append(", ".join(f"{each.source}:{each.name}={_shown(value, each.value)}" for each in value.synonyms))
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(["OPTION", *(column.upper() for column in columns[1:])], rows)


def _shown(option: ConfigValue, value: str) -> str:
    return "(hidden)" if option.is_sensitive else value


@app.command()
def alter(
    kind: Kind,
    name: Name,
    client: OfClient = None,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="NAME=VALUE", help="Option to set. Repeatable.")
    ] = None,
    add_file: AddFile = None,
    delete: Annotated[
        list[str] | None, typer.Option("--delete", metavar="NAME", help="Option to return to its default. Repeatable.")
    ] = None,
    append: Annotated[
        list[str] | None,
        typer.Option("--append", metavar="NAME=VALUE", help="Elements to add to the list of an option. Repeatable."),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option(
            "--subtract", metavar="NAME=VALUE", help="Elements to remove from the list of an option. Repeatable."
        ),
    ] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Validate the changes, and make none.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Set options, and return other options to their defaults. If one change is refused, none is made.

    Examples:

      millrace configs alter topics orders --add retention.ms=86400000 --delete segment.bytes

      millrace configs alter brokers 1 --add leader.replication.throttled.rate=50000000

      millrace configs alter brokers default --add log.retention.ms=86400000

      millrace configs alter brokers 1 --add-file keystore.properties

      millrace configs alter topics orders --append cleanup.policy=compact

      millrace configs alter broker-loggers 1 --add millrace_broker.replication=DEBUG

      millrace configs alter users alice --add producer_byte_rate=1048576

      millrace configs alter ips default --add connection_creation_rate=20
    """
    if not (add or add_file or delete or append or subtract):
        raise UsageError("name a change: use --add, --add-file, --delete, --append or --subtract")
    done = "the broker accepts these changes of" if validate_only else "changed"
    values = _added(add, add_file)
    if kind in _QUOTA_KINDS:
        if append or subtract:
            raise UsageError("quotas are numbers and no lists: use --add and --delete")
        entity, quotas = _entity(kind, name, client), {key: _number(key, text) for key, text in values.items()}
        with admin_client(bootstrap_server, client_config) as admin:
            admin.alter_client_quotas(entity, quotas, remove=delete or (), validate_only=validate_only)
        typer.echo(f"{done} the quotas of {entity}")
        return
    with admin_client(bootstrap_server, client_config) as admin:
        admin.alter_configs(
            _resource_name(kind, name),
            values,
            delete=delete or (),
            append=list_changes(append, "--append"),
            subtract=list_changes(subtract, "--subtract"),
            resource=_resource(kind),
            validate_only=validate_only,
        )
    typer.echo(f"{done} {name}")


def _added(add: list[str] | None, file: Path | None) -> dict[str, str]:
    """Return the options to set, of the command line and of the file. Raises ``UsageError``."""
    values = name_values(add, "--add")
    if file is None:
        return values
    if str(file) == "-":
        given = parse_properties(sys.stdin.read(), "the input")
    else:
        given = read_properties(file)
    if not given:
        raise UsageError(f"{file} has no options: it has lines NAME=VALUE")
    if twice := sorted(values.keys() & given.keys()):
        raise UsageError(f"{', '.join(twice)} is set by --add and by {file}: set it once")
    return {**values, **given}


def _resource(kind: str) -> str:
    if kind not in _KINDS:
        raise UsageError(f"{kind}: expected {', '.join((*_KINDS, *_QUOTA_KINDS))}")
    return _KINDS[kind]


def _resource_name(kind: str, name: str) -> str:
    """Return the name in requests, which is empty for all brokers."""
    return "" if (kind, name) == ("brokers", "default") else name


def _entity(kind: str, name: str, client: str | None) -> QuotaEntity:
    parts = [(_QUOTA_KINDS[kind], name)]
    if client is not None:
        if kind != "users":
            raise UsageError(f"--client is for users, and not for {kind}: name the client id as in 'clients {client}'")
        parts.append((CLIENT_ID, client))
    return QuotaEntity.of((each, None if text == _DEFAULT else text) for each, text in parts)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{key}={text}: expected a number") from None


def _describe_quotas(
    entity: QuotaEntity, bootstrap_server: str | None, client_config: Path | None, *, as_json: bool
) -> None:
    from millrace.cli.output import print_json, print_table

    filters = [
        QuotaFilter(kind, Match.DEFAULT if name is None else Match.EXACT, name or "") for kind, name in entity.parts
    ]
    with admin_client(bootstrap_server, client_config) as admin:
        found = admin.describe_client_quotas(filters, strict=True).get(entity, {})
    rows = [(key, f"{value:.15g}", entity.keys[key]) for key, value in sorted(found.items())]
    if as_json:
        print_json([dict(zip(("name", "value", "limits"), row, strict=True)) for row in rows])
    else:
        print_table(["QUOTA", "VALUE", "LIMITS"], rows)

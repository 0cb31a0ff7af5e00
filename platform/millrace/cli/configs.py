"""Show and change configurations of topics, brokers and groups."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client, name_value
from millrace.errors import UsageError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help="Show and change configurations."
)

_KINDS = {"topics": "topic", "brokers": "broker", "groups": "group"}

Kind = Annotated[str, typer.Argument(metavar="topics|brokers|groups", help="Kind of the configured entity.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A topic, a broker's id (`default`: all brokers), or a group.")
]


@app.command()
def describe(
    kind: Kind,
    name: Name,
    all_options: Annotated[bool, typer.Option("--all", help="Show options with default values too.")] = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Show the options that differ from the defaults, or all options, with the source of each value.

    Examples:

      millrace configs describe topics orders

      millrace configs describe brokers 1 --all
    """
    from millrace.cli.output import print_json, print_table

    with admin_client(bootstrap_server, client_config) as admin:
        found = admin.describe_configs(_resource_name(kind, name), resource=_resource(kind))
    shown = {
        option: value for option, value in sorted(found.items()) if all_options or value.source != "DEFAULT_CONFIG"
    }
    rows = [
        (option, "(hidden)" if value.is_sensitive else value.value, value.source) for option, value in shown.items()
    ]
    if as_json:
        print_json([dict(zip(("name", "value", "source"), row, strict=True)) for row in rows])
    else:
        print_table(["OPTION", "VALUE", "SOURCE"], rows)


@app.command()
def alter(
    kind: Kind,
    name: Name,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="NAME=VALUE", help="Option to set. Repeatable.")
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option("--delete", metavar="NAME", help="Option to return to its default. Repeatable.")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Set options, and return other options to their defaults. If one change is refused, none is made.

    Examples:

      millrace configs alter topics orders --add retention.ms=86400000 --delete segment.bytes

      millrace configs alter brokers 1 --add leader.replication.throttled.rate=50000000

      millrace configs alter brokers default --add log.retention.ms=86400000
    """
    if not add and not delete:
        raise UsageError("name a change: --add NAME=VALUE or --delete NAME")
    values = dict(name_value(text, "--add") for text in add or ())
    with admin_client(bootstrap_server, client_config) as admin:
        admin.alter_configs(_resource_name(kind, name), values, delete=delete or (), resource=_resource(kind))
    typer.echo(f"changed {name}")


def _resource(kind: str) -> str:
    if kind not in _KINDS:
        raise UsageError(f"{kind}: expected {', '.join(_KINDS)}")
    return _KINDS[kind]


def _resource_name(kind: str, name: str) -> str:
    """Return the name in requests, which is empty for all brokers."""
    return "" if (kind, name) == ("brokers", "default") else name

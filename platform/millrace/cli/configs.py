"""Show and change configurations and quotas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client, list_changes, name_values
from millrace.cli.secret_options import refuse_secrets
from millrace.config.base import read_properties
from millrace.config.properties import parse_properties
from millrace.config.references import resolve_references
from millrace.config.secrets import is_secret
from millrace.errors import InvalidRequestError, MillraceError, UsageError
from millrace.quotas import CLIENT_ID, IP, USER, Match, QuotaEntity, QuotaFilter, check_key
from millrace.security.scram import MECHANISM_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from millrace.clients import Admin, ConfigValue

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
        "with quotas (`default`: each one without quotas of its own). A user also has SCRAM credentials.",
    ),
]
OfClient = Annotated[
    str | None,
    typer.Option("--client", metavar="ID", help="With users: the user's connections with this client id (`default`)."),
]
Add = Annotated[list[str] | None, typer.Option("--add", metavar="NAME=VALUE", help="Option to set. Repeatable.")]
Delete = Annotated[
    list[str] | None, typer.Option("--delete", metavar="NAME", help="Option to return to its default. Repeatable.")
]
Append = Annotated[
    list[str] | None,
    typer.Option("--append", metavar="NAME=VALUE", help="Elements to add to the list of an option. Repeatable."),
]
Subtract = Annotated[
    list[str] | None,
    typer.Option("--subtract", metavar="NAME=VALUE", help="Elements to remove from the list of an option. Repeatable."),
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

      millrace configs describe users alice

      millrace configs describe users alice --client reports
    """
    from millrace.cli.output import print_json, print_table

    if kind in _QUOTA_KINDS:
        with admin_client(bootstrap_server, client_config) as admin:
            _describe_entity(admin, _entity(kind, name, client), as_json=as_json)
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


@app.command(context_settings={"allow_extra_args": True})
def alter(
    context: typer.Context,
    kind: Kind,
    name: Name,
    client: OfClient = None,
    add: Add = None,
    add_file: AddFile = None,
    delete: Delete = None,
    append: Append = None,
    subtract: Subtract = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Validate the changes, and make none.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Set options, and return other options to their defaults. If one change is refused, none is made.

    A password may be in a file, or a reference in place of the value: `${env:NAME}`, `${file:PATH:PROPERTY}`.

    Examples:

      millrace configs alter topics orders --add retention.ms=86400000 --delete segment.bytes

      millrace configs alter brokers 1 --add leader.replication.throttled.rate=50000000

      millrace configs alter brokers default --add log.retention.ms=86400000

      millrace configs alter brokers 1 --add-file keystore.properties

      millrace configs alter topics orders --append cleanup.policy=compact

      millrace configs alter broker-loggers 1 --add millrace_broker.replication=DEBUG

      millrace configs alter users alice --add producer_byte_rate=1048576

      millrace configs alter users alice --add 'SCRAM-SHA-512=[iterations=8192,password=${env:ALICE_PASSWORD}]'

      millrace configs alter users alice --delete SCRAM-SHA-256

      millrace configs alter ips default --add connection_creation_rate=20
    """
    if context.args:  # typer's own error would show a password
        raise UsageError("there is an argument behind the name: give changes with --add, --add-file or --delete")
    if not (add or add_file or delete or append or subtract):
        raise UsageError("name a change: use --add, --add-file, --delete, --append or --subtract")
    done = "the broker accepts these changes of" if validate_only else "changed"
    values = _added(kind, add, add_file)
    if kind in _QUOTA_KINDS:
        if append or subtract:
            raise UsageError("quotas are numbers and no lists: use --add and --delete")
        entity = _entity(kind, name, client)
        with admin_client(bootstrap_server, client_config) as admin:
            what = _alter_entity(admin, entity, values, delete or (), validate_only=validate_only)
        typer.echo(f"{done} the {what} of {entity}")
        return
    with admin_client(bootstrap_server, client_config) as admin:
        admin.alter_configs(
            _resource_name(kind, name),
            values,
            delete=delete or (),
            append=_changes(kind, append, "--append"),
            subtract=_changes(kind, subtract, "--subtract"),
            resource=_resource(kind),
            validate_only=validate_only,
        )
    typer.echo(f"{done} {name}")


def _added(kind: str, add: list[str] | None, file: Path | None) -> dict[str, str]:
    """Return the options to set, of the command line and of the file, with references to secrets resolved.

    Raises ``UsageError``, for a secret on the command line too.
    """
    values = name_values(add, "--add")
    _refuse_secrets(kind, values, "--add")
    if file is not None:
        given = parse_properties(sys.stdin.read(), "the input") if str(file) == "-" else read_properties(file)
        if not given:
            raise UsageError(f"{file} has no options: it has lines NAME=VALUE")
        if twice := sorted(values.keys() & given.keys()):
            raise UsageError(f"{', '.join(twice)} is set by --add and by {file}: set it once")
        values |= given
    return values | resolve_references({name: text for name, text in values.items() if _is_secret(kind, name)})


def _changes(kind: str, texts: list[str] | None, option: str) -> dict[str, str]:
    """Return changes of lists. Raises ``UsageError``, for a secret too."""
    changes = list_changes(texts, option)
    _refuse_secrets(kind, changes, option)
    return changes


def _refuse_secrets(kind: str, values: Mapping[str, str], option: str) -> None:
    refuse_secrets(
        values, option, is_secret=lambda name: _is_secret(kind, name), file="with --add-file (`-`: the input)"
    )
    if kind == "users":
        from millrace.cli.scram_options import refuse_scram_passwords

        refuse_scram_passwords(values, option)


def _is_secret(kind: str, option: str) -> bool:
    if kind != "brokers":
        return is_secret(option)
    from millrace.config.broker import BrokerConfig

    return BrokerConfig.is_secret(option)


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


def _alter_entity(
    admin: Admin, entity: QuotaEntity, values: Mapping[str, str], delete: Collection[str], *, validate_only: bool
) -> str:
    """Change the quotas of an entity, or the SCRAM credentials of a user. Return the name of the changed things.

    Raises ``UsageError``, and the broker's error.
    """
    if not any(name in MECHANISM_NUMBERS for name in (*values, *delete)):
        quotas = {key: _number(entity, key, text) for key, text in values.items()}
        admin.alter_client_quotas(entity, quotas, remove=delete, validate_only=validate_only)
        return "quotas"
    from millrace.cli.scram_options import scram_alterations

    user = _user_of(entity)
    if user is None:
        raise UsageError(f"{entity} has no SCRAM credentials: name one user, without --client")
    if any(name not in MECHANISM_NUMBERS for name in (*values, *delete)):
        raise UsageError("quotas and SCRAM credentials cannot be changed together: use a command for each")
    if validate_only:
        raise UsageError("--validate-only is not for SCRAM credentials: Kafka's call for them only changes them")
    for error in admin.alter_user_scram_credentials(scram_alterations(user, values, delete)).values():
        if error is not None:
            raise error
    return "SCRAM credentials"


def _user_of(entity: QuotaEntity) -> str | None:
    """Return the user's name if the entity is one user, who may have SCRAM credentials."""
    kind, name = entity.parts[0]
    return name if kind == USER and len(entity.parts) == 1 else None


def _number(entity: QuotaEntity, key: str, text: str) -> float:
    """Return the value of a quota. Raises ``UsageError`` without the value, which may be a misplaced password."""
    try:
        check_key(entity, key)
        return float(text)
    except InvalidRequestError as error:
        also = " A user also has SCRAM-SHA-256 and SCRAM-SHA-512" if _user_of(entity) else ""
        raise UsageError(f"{error.message}.{also}" if also else error.message) from None
    except ValueError:
        raise UsageError(f"{key} of {entity}: expected a number ({entity.keys[key]})") from None


def _describe_entity(admin: Admin, entity: QuotaEntity, *, as_json: bool) -> None:
    """Print the quotas of an entity, and the SCRAM credentials of a user."""
    from millrace.cli.output import print_json, print_table

    filters = [
        QuotaFilter(kind, Match.DEFAULT if name is None else Match.EXACT, name or "") for kind, name in entity.parts
    ]
    found = admin.describe_client_quotas(filters, strict=True).get(entity, {})
    rows = [(key, f"{value:.15g}", entity.keys[key]) for key, value in sorted(found.items())]
    rows += [(mechanism, f"iterations={count}", "") for mechanism, count in _credentials(admin, entity).items()]
    if as_json:
        print_json([dict(zip(("name", "value", "limits"), row, strict=True)) for row in rows])
    else:
        print_table(["OPTION", "VALUE", "LIMITS"], rows)


def _credentials(admin: Admin, entity: QuotaEntity) -> dict[str, int]:
    """Return the iterations of a user's SCRAM credentials by mechanism. An error does not hide the quotas."""
    user = _user_of(entity)
    if user is None:
        return {}
    try:
        return admin.describe_user_scram_credentials([user]).get(user, {})
    except MillraceError as error:
        typer.echo(f"the SCRAM credentials of {entity} are not shown: {error.message}", err=True)
        return {}

"""Common options of commands, and the client configuration built from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from millrace.cli.secret_options import refuse_secrets
from millrace.config.base import Config, option_name, read_properties
from millrace.errors import UsageError

BOOTSTRAP_VARIABLE: Final = "MILLRACE_BOOTSTRAP_SERVERS"

CONFIG_VARIABLE: Final = "MILLRACE_CLIENT_CONFIG"

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar=BOOTSTRAP_VARIABLE,
        show_envvar=True,
        help="Brokers to connect to. The default is localhost:9092.",
    ),
]
ClientConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        show_envvar=True,
        help="Properties file of the client. The default is millrace's client.properties.",
    ),
]
ClientOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of the client. It overrides the file. For a secret give a reference. Repeatable.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def name_value(text: str, option: str) -> tuple[str, str]:
    """Split ``name=value``. Raises ``UsageError``, which does not show the text, because it may be a secret."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise UsageError(f"{option}: expected NAME=VALUE. The given text is not shown, because it may be a secret")
    return name.strip(), value.strip()


def name_values(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Split the texts ``name=value`` of an option that may be repeated. A name is given once. Raises ``UsageError``."""
    values: dict[str, str] = {}
    for name, value in (name_value(text, option) for text in texts or ()):
        if name in values:
            raise UsageError(f"{option} {name} is given twice: give it once")
        values[name] = value
    return values


def list_changes(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Split the texts ``name=elements`` of an option. The elements of a repeated name are joined by commas.

    Raises ``UsageError``.
    """
    elements: dict[str, list[str]] = {}
    for name, value in (name_value(text, option) for text in texts or ()):
        elements.setdefault(name, []).append(value)
    return {name: ",".join(values) for name, values in elements.items()}


def is_number(text: str) -> bool:
    """Return whether a text is a whole number in the digits 0 to 9."""
    return text.isascii() and text.isdecimal()


def client_config(
    kind: type[Config],
    bootstrap: str | None,
    file: Path | None,
    options: Sequence[str] | None = None,
    **defaults: Any,
) -> dict[str, Any]:
    """Combine a client's options from the command's own, the file, ``-o``, and ``--bootstrap-server``.

    The file may hold options of all kinds of clients; options that ``kind`` does not have are ignored. The file
    reader refuses an option that no client has. A secret that is given by ``-o`` is refused (``UsageError``).
    """
    known = set(kind.option_names())
    values: dict[str, Any] = {option_name(name): value for name, value in defaults.items()}
    values.update((name, value) for name, value in _file_options(file).items() if name in known)
    given = name_values(options, "-o")
    refuse_secrets(given, "-o", is_secret=kind.is_secret, file="in the file of --client-config")
    values.update(given)
    if bootstrap:
        values["bootstrap.servers"] = bootstrap
    return values


def _file_options(file: Path | None) -> dict[str, str]:
    from millrace.cli.paths import conf_dir
    from millrace.config.client import ConsumerConfig, ProducerConfig

    path = file or conf_dir() / "client.properties"
    values = read_properties(path)
    known = {*ProducerConfig.option_names(), *ConsumerConfig.option_names()}
    for name in values:
        if name not in known:
            raise UsageError(f"{path}: no client has the option {name}")
    return values


def admin_client(bootstrap: str | None, file: Path | None) -> Any:
    """Create an ``Admin`` from the command's options."""
    from millrace.clients import Admin
    from millrace.config.client import ClientConfig

    return Admin(client_config(ClientConfig, bootstrap, file))

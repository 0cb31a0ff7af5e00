"""Create, renew, describe and expire delegation tokens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, client_config
from millrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from millrace.clients.delegation_tokens import DelegationToken
    from millrace.config.client import ClientConfig

app = command_group("Create, renew, describe and expire delegation tokens.")

TokenId = Annotated[str, typer.Option("--token-id", metavar="ID", help="Id of the token.")]


@app.command()
def create(
    owner: Annotated[str, typer.Option(metavar="USER", help="Owner of the token. The default is the own user.")] = "",
    renewer: Annotated[
        list[str] | None, typer.Option(metavar="USER", help="User who may renew and end the token. Repeatable.")
    ] = None,
    max_lifetime: Annotated[
        int, typer.Option(metavar="MS", help="Longest lifetime with all renewals; negative: the brokers' longest.")
    ] = -1,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    properties: ClientConfigFile = None,
) -> None:
    """Create a token, and print its id and its HMAC: user and password for SCRAM with `tokenauth=true`.

    Examples:

      millrace delegation-tokens create --renewer scheduler --client-config alice.properties
    """
    from millrace.clients.delegation_tokens import create_token

    config = _config(bootstrap_server, properties)
    token = create_token(config, owner=owner, renewers=renewer or (), lifetime_ms=max_lifetime)
    if as_json:
        print_json(_fields(token) | {"hmac": token.password})
    else:
        row = (token.token_id, token.password, token.owner, _time(token.expires_ms))
        print_table(("TokenId", "Hmac", "Owner", "Expires"), [row])


@app.command()
def describe(
    owner: Annotated[
        list[str] | None, typer.Option(metavar="USER", help="Only tokens that the user owns or renews. Repeatable.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    properties: ClientConfigFile = None,
) -> None:
    """Describe the tokens that the own user owns, renews, or may see. Their HMACs are not printed.

    Examples:

      millrace delegation-tokens describe --owner alice
    """
    from millrace.clients.delegation_tokens import describe_tokens

    found = describe_tokens(_config(bootstrap_server, properties), owner or ())
    if as_json:
        print_json([_fields(each) for each in found])
        return
    rows = [
        (each.token_id, each.owner, _time(each.expires_ms), _time(each.max_ms), ",".join(each.renewers))
        for each in found
    ]
    print_table(("TokenId", "Owner", "Expires", "Latest", "Renewers"), rows)


@app.command()
def renew(
    token_id: TokenId,
    period: Annotated[int, typer.Option(metavar="MS", help="Time from now; negative: the brokers' default.")] = -1,
    bootstrap_server: BootstrapServer = None,
    properties: ClientConfigFile = None,
) -> None:
    """Prolong a token.

    Examples:

      millrace delegation-tokens renew --token-id 3_XavzD9hreJaOfbndCxxw
    """
    from millrace.clients.delegation_tokens import renew_token

    expires_ms = renew_token(_config(bootstrap_server, properties), token_id, period)
    typer.echo(f"token {token_id} expires at {_time(expires_ms)}")


@app.command()
def expire(
    token_id: TokenId,
    period: Annotated[int, typer.Option(metavar="MS", help="Time from now; negative: at once.")] = -1,
    bootstrap_server: BootstrapServer = None,
    properties: ClientConfigFile = None,
) -> None:
    """End a token.

    Examples:

      millrace delegation-tokens expire --token-id 3_XavzD9hreJaOfbndCxxw
    """
    from millrace.clients.delegation_tokens import expire_token

    expires_ms = expire_token(_config(bootstrap_server, properties), token_id, period)
    typer.echo(f"token {token_id} expires at {_time(expires_ms)}")


def _config(bootstrap_server: str | None, properties: Path | None) -> ClientConfig:
    from millrace.config.client import ClientConfig

    return ClientConfig.of(client_config(ClientConfig, bootstrap_server, properties))


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _fields(token: DelegationToken) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "max_ms": token.max_ms,
    }

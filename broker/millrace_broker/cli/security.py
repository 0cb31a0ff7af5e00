"""Commands ``millrace security`` for the certificates and users of a cluster.

The commands make and renew certificates, add the first users, and write properties files for brokers and clients.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.command_group import command_group
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace_broker.cli.security_directory import Place

app = command_group("Make and renew the certificates of a cluster, its first users, and properties files with them.")

DEFAULT_DIRECTORY: Final = "millrace-security"
_OVERLAP_S: Final = 20.0
"""Twice the default of ``ssl.reload.interval.ms``."""
_DAYS_MAX: Final = 825
"""Longest validity that the clients of all systems accept."""

Directory = Annotated[Path, typer.Option(help="Directory of the files.")]
Days = Annotated[int, typer.Option(min=1, max=_DAYS_MAX, help="Days for which certificates are valid.")]


@app.command()
def init(
    directory: Directory = Path(DEFAULT_DIRECTORY),
    broker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="Host and port at which clients reach a broker, in the order of the ids. Repeatable. The default is "
            "one broker on this machine, localhost:9092.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="User, beside admin. Repeatable. The default is client.")
    ] = None,
    zookeeper: Annotated[
        str, typer.Option(metavar="HOST:PORT/CHROOT", help="ZooKeeper of the brokers, of which a cluster has several.")
    ] = "",
    location: Annotated[
        Path | None,
        typer.Option(help="Directory of the files on the machines that use them. The default is --directory."),
    ] = None,
    days: Days = 365,
) -> None:
    """Make an authority, certificates, users with passwords, and the properties of brokers and clients.

    Every broker has two listeners. The listener *SASL_SSL* is for users with passwords. The listener *SSL*, 100 ports
    above it, is for brokers and for users with certificates. The user *admin* may do everything. Other users may do
    what ACLs allow them. The command overwrites no file.

    Examples:

      millrace security init

      millrace broker --config millrace-security/broker-1.properties --data-dir ./data

      millrace topics create orders --client-config millrace-security/admin.properties

      millrace security init --broker b1.example --broker b2.example --zookeeper zk.example:2181/millrace
    """
    from millrace_broker.cli.security_directory import ADMIN, SecurityDirectory

    brokers = [_place(text) for text in broker or ("localhost:9092",)]
    if len(set(brokers)) < len(brokers):
        raise UsageError("two of --broker have the same address: each broker has its own")
    if len(brokers) > 1 and not zookeeper:
        raise UsageError(f"{len(brokers)} brokers have their metadata in ZooKeeper: name it with --zookeeper")
    clients = client or ["client"]
    SecurityDirectory.at(directory, location).create(brokers, clients, days, zookeeper)
    typer.echo(f"{directory} has the files of {len(brokers)} broker(s) and of {', '.join([ADMIN, *clients])}")
    typer.echo(
        f"start a broker with --config {directory}/broker-1.properties, and give clients --client-config "
        f"{directory}/{ADMIN}.properties\nkeep {directory}/ca-key.pem apart: its owner can become any broker and user",
        err=True,
    )
    if zookeeper:
        typer.echo(zookeeper_hint(zookeeper, directory), err=True)


def zookeeper_hint(zookeeper: str, directory: Path) -> str:
    """Return a warning about a ZooKeeper that does not know who the brokers are, and the remedy."""
    return (
        f"everyone who reaches ZooKeeper at {zookeeper} can change users and ACLs there, unless brokers authenticate: "
        f"set zookeeper.sasl.* or zookeeper.ssl.*, and zookeeper.set.acl=true, in {directory}/broker-*.properties "
        '("Authentication to ZooKeeper" in docs/security.md)'
    )


def _place(text: str) -> Place:
    from millrace.config.listeners import Listener
    from millrace_broker.cli.security_directory import Place

    try:
        found = Listener.parse(text if re.search(r"[^:]:\d+$", text) else f"{text}:9092")
    except ValueError:
        raise UsageError(f"broker {text}: expected HOST or HOST:PORT") from None
    return Place(found.host, found.port)


@app.command("add-user")
def add_user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    directory: Directory = Path(DEFAULT_DIRECTORY),
    days: Days = 365,
    next_start: Annotated[
        bool,
        typer.Option(
            "--next-start",
            help="Do not call the cluster: add the credential to the properties of the brokers, for their next start.",
        ),
    ] = False,
) -> None:
    """Add a user: a password in the running cluster, a certificate, and properties with them.

    *admin.properties* of the directory names the brokers, which take the password at once. The user may do what ACLs
    allow it.

    Examples:

      millrace security add-user orders

      millrace acls add --allow-principal User:orders --producer --topic orders

      millrace security add-user orders --next-start
    """
    from millrace.clients.scram_credentials import add_credential
    from millrace.config.base import read_properties
    from millrace.config.client import ClientConfig
    from millrace_broker.cli.security_directory import ADMIN, TRUST_STORE, SecurityDirectory

    def register(user: str, mechanism: str, password: str) -> None:
        # The trust store is here, also if its name is that of another machine.
        options = read_properties(directory / f"{ADMIN}.properties")
        config = ClientConfig.load({**options, "ssl.truststore.location": str(directory / TRUST_STORE)})
        add_credential(config, user, mechanism, password)

    files = SecurityDirectory.of_existing(directory)
    files.add_client(name, days, None if next_start else register)
    typer.echo(f"{directory} has the files of {name}: give clients --client-config {directory}/{name}.properties")
    when = "after the next start of the brokers with their changed properties" if next_start else "now"
    typer.echo(f"{name} can authenticate {when}, and may do what ACLs allow: see millrace acls add", err=True)


@app.command("add-broker")
def add_broker(
    broker: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="Where clients reach the broker.")],
    directory: Directory = Path(DEFAULT_DIRECTORY),
    days: Days = 365,
) -> None:
    """Add a broker to a cluster with ZooKeeper: the next id, a certificate, and properties with them.

    The other options are those of the first broker. Copy the two new files and *ca.pem* to the broker's machine.

    Examples:

      millrace security add-broker b4.example

      millrace broker --config millrace-security/broker-4.properties --data-dir ./data-4
    """
    from millrace_broker.cli.security_directory import SecurityDirectory

    path = SecurityDirectory.of_existing(directory).add_broker(_place(broker), days)
    typer.echo(f"{directory} has {path.name} and {path.with_suffix('.pem').name}")
    typer.echo(
        f"start the broker with --config {directory}/{path.name}, and move partitions to it with millrace reassign",
        err=True,
    )


@app.command()
def rotate(
    directory: Directory = Path(DEFAULT_DIRECTORY),
    days: Days = 365,
    ca: Annotated[
        bool, typer.Option("--ca", help="Add a new authority to the trust store. Certificates stay as they are.")
    ] = False,
    retire_ca: Annotated[
        bool, typer.Option("--retire-ca", help="Remove the earlier authority from the trust store.")
    ] = False,
    overlap: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds for which a new authority must have been in the trust store before it issues."
        ),
    ] = _OVERLAP_S,
) -> None:
    """Renew the certificates of brokers and clients, which read them within ten seconds, without a restart.

    Connections stay open. The authority is renewed in three steps. First *--ca* adds the new authority, then *rotate*
    issues all certificates by it, and finally *--retire-ca* removes the earlier one. Brokers and clients must read the
    files between the steps.

    Examples:

      millrace security rotate

      millrace security rotate --ca

      millrace security rotate

      millrace security rotate --retire-ca
    """
    from millrace_broker.cli.security_directory import SecurityDirectory

    if ca and retire_ca:
        raise UsageError("--ca and --retire-ca are steps of their own: renew the certificates between them")
    files = SecurityDirectory.at(directory)
    if ca:
        typer.echo(f"{directory}/ca.pem has the new {files.add_authority()} beside the earlier one")
        typer.echo("next: millrace security rotate, when all brokers and clients have this file", err=True)
    elif retire_ca:
        names = files.retire()
        typer.echo(f"{directory}/ca.pem is without {', '.join(names)}" if names else "there is no earlier authority")
    else:
        for name, end in files.renew(days, overlap).items():
            typer.echo(f"{directory}/{name} is valid until {end:%Y-%m-%d}")
        for name in files.foreign_files():
            typer.echo(
                f"{directory}/{name} stays: it has no key with a certificate of an authority in ca.pem", err=True
            )

"""Commands ``millrace cluster``, which run or describe a cluster."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client, name_values
from millrace.errors import EnvironmentProblemError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from millrace.cli.partition_views import PartitionView
    from millrace.clients import TopicDescription
    from millrace_broker.cli.local_zookeeper import LocalZooKeeper
    from millrace_broker.cli.security_directory import SecurityDirectory

app = command_group("Run and describe clusters.")

_STOP_S = 60.0
_DAYS = 365
"""Validity of the certificates of a cluster on this machine."""


ConfigOfAll = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Properties file with options of all brokers, such as passwords.")
]
OptionsOfAll = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="Option of all brokers. It overrides the file. Repeatable."
    ),
]


@app.command()
def up(
    brokers: Annotated[int, typer.Option(help="How many brokers.")] = 3,
    data_dir: Annotated[Path, typer.Option(help="Directory for the data of the whole cluster.")] = Path(
        "millrace-cluster"
    ),
    port: Annotated[
        int, typer.Option(help="Port of the first broker. The other brokers use the following ports.")
    ] = 9092,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT/CHROOT", help="Address of a running ZooKeeper, instead of starting one."),
    ] = None,
    config: ConfigOfAll = None,
    option: OptionsOfAll = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Encrypt, authenticate and authorize, with the files of *millrace security init* in "
            "DATA_DIR/security, which are made if there are none.",
        ),
    ] = False,
) -> None:
    """Run ZooKeeper and brokers on this machine, for development, until Ctrl-C, SIGTERM, or the terminal is closed.

    ZooKeeper and the brokers end with this command, even if it is killed. The data stays.

    Examples:

      millrace cluster up --brokers 3

      millrace topics create orders --partitions 6 --replication-factor 3 -b localhost:9092

      millrace cluster up --config brokers.properties -o log.retention.hours=24

      millrace cluster up --secure

      millrace topics list --client-config millrace-cluster/security/admin.properties
    """
    from millrace_broker.cli.security_directory import replication_options

    if brokers < 1:
        raise UsageError(f"--brokers {brokers}: a cluster has at least one")
    given = _options_of_all(config, option)
    security = _security(data_dir / "security", brokers, port) if secure else None
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:  # nohup
            signal.signal(each, signal.default_int_handler)  # as for Ctrl-C, so that every started process is stopped
    with contextlib.ExitStack() as stack:
        held: tuple[int, ...] = ()
        options = {**replication_options(brokers), "zookeeper.connect": zookeeper or ""}
        if zookeeper is None:
            server, own = _local_zookeeper(data_dir, security)
            held = (stack.enter_context(server).lifeline,)
            options |= {"zookeeper.connect": server.address, **own}
            typer.echo(f"ZooKeeper listening on {server.address}")
        options |= given
        running = _Brokers(data_dir, port, options, held, security)
        stack.callback(running.stop)
        for number in range(1, brokers + 1):
            running.start(number)
        for line in running.listening():
            typer.echo(line)
        how = f"bootstrap-server {running.addresses}"
        if security is not None:
            how = f"client-config {security.path / 'admin.properties'}"
            _warn_of_open_metadata(security, options)
        typer.echo(f"the cluster is up: --{how}", err=True)
        running.wait()


def _options_of_all(config: Path | None, options: list[str] | None) -> dict[str, str]:
    """Return the options of the file and of the command line. Raises ``UsageError``, and ``InvalidConfigError``."""
    from millrace.config.base import read_properties
    from millrace_broker.cli.broker import refuse_broker_secrets

    given = name_values(options, "-o")
    refuse_broker_secrets(given)
    return {**({} if config is None else read_properties(config)), **given}


def _security(directory: Path, brokers: int, port: int) -> SecurityDirectory:
    """Return the security of a cluster on this machine, which is made if it is not there.

    Raises ``UsageError`` if it was made for fewer brokers, or if clients could not know the ports.
    """
    from millrace_broker.cli.security_directory import Place, SecurityDirectory

    if port == 0:
        raise UsageError("--port 0 with --secure: the clients' properties have the ports, so name the first one")
    files = SecurityDirectory.at(directory)
    if not directory.exists():
        files.create([Place("localhost", port + number) for number in range(brokers)], ["client"], _DAYS)
    for number in range(1, brokers + 1):
        files.broker_properties(number)
    return files


def _local_zookeeper(data_dir: Path, security: SecurityDirectory | None) -> tuple[LocalZooKeeper, Mapping[str, str]]:
    """Return a ZooKeeper for a cluster, and the options by which its brokers authenticate.

    Raises ``UsageError`` if the cluster was secure before, because its nodes belong to authenticated brokers.
    """
    from millrace_broker.cli.local_zookeeper import LocalZooKeeper
    from millrace_broker.cli.security_directory import SecurityDirectory

    directory = data_dir.absolute() / "zookeeper"
    if security is not None:
        login = security.zookeeper_login()
        return LocalZooKeeper(directory, login.jaas), login.broker_options
    if SecurityDirectory.at(data_dir / "security").has_zookeeper_login:
        raise UsageError(f"{data_dir} has the metadata of a secure cluster: add --secure, or name another --data-dir")
    return LocalZooKeeper(directory), {}


def _warn_of_open_metadata(security: SecurityDirectory, options: Mapping[str, str]) -> None:
    """Print how brokers authenticate to ZooKeeper, if they do not."""
    from millrace.config.base import read_properties
    from millrace.config.zookeeper import ZooKeeperConfig
    from millrace_broker.cli.security import zookeeper_hint

    known, given = set(ZooKeeperConfig.option_names()), {**read_properties(security.broker_properties(1)), **options}
    config = ZooKeeperConfig.load({name: value for name, value in given.items() if name in known})
    if not config.authenticates:
        typer.echo(zookeeper_hint(config.zookeeper_connect, security.path), err=True)


@app.command()
def migrate(
    config: Annotated[
        Path | None, typer.Option(help="Properties file of the broker. The default is millrace's broker.properties.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Data directory (log.dirs). The default is ./millrace-data.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="Broker option. It overrides the file. Repeatable."),
    ] = None,
) -> None:
    """Copy the metadata of a stopped single broker to ZooKeeper, so that the broker can become a cluster.

    The configuration must set `zookeeper.connect`. The broker keeps its data, and starts with this configuration
    afterwards. An interrupted migration is repeated with the same command.

    Examples:

      millrace cluster migrate --data-dir /srv/millrace -o zookeeper.connect=zk1:2181,zk2:2181,zk3:2181/millrace
    """
    from millrace_broker.cli.broker import load_config
    from millrace_broker.cluster.migration import MIGRATED_FILE
    from millrace_broker.cluster.migration import migrate as copy
    from millrace_broker.cluster.opened_metadata import zookeeper_store

    loaded = load_config(config, data_dir=data_dir, listen=None, options=option or [])
    if loaded.zookeeper_config is None:
        raise UsageError("zookeeper.connect is not set: name ZooKeeper with -o zookeeper.connect=HOST:PORT/CHROOT")
    address = loaded.zookeeper_config.zookeeper_connect
    directory = Path(loaded.log_directories[0]).expanduser().absolute()
    found = copy(directory, zookeeper_store(loaded), address=address)
    what = f"{found.nodes} nodes copied" if found.nodes else "the migration was complete before"
    typer.echo(f"cluster {found.cluster_id} with {found.topics} topics is in ZooKeeper at {address}: {what}")
    typer.echo(f"{directory / MIGRATED_FILE} is a copy; start the broker with the same configuration", err=True)


class _Brokers:
    """Broker processes on this machine."""

    def __init__(
        self,
        data_dir: Path,
        first_port: int,
        options: dict[str, str],
        held: tuple[int, ...],
        security: SecurityDirectory | None,
    ) -> None:
        """Prepare the broker processes, which keep the file descriptors ``held`` open."""
        from millrace.config.broker import BrokerConfig

        self._held = held
        self._security = security
        self._data_dir = data_dir
        self._first_port = first_port
        self._secrets = {name: value for name, value in options.items() if BrokerConfig.is_secret(name)}
        self._options = {name: value for name, value in options.items() if name not in self._secrets}
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._listening: list[str] = []
        self._made: list[Path] = []
        self._ended = threading.Event()

    def _config(self, number: int) -> Path | None:
        """Return the properties file of a broker, None for the default one.

        Only files have secrets, because every user of the machine can see a command.
        """
        from millrace.cli.paths import conf_dir
        from millrace.config.base import read_properties
        from millrace_broker.cli.broker import DEFAULT_FILE
        from millrace_broker.cli.whole_files import SECRET_MODE, properties_text, write_whole

        base = None if self._security is None else self._security.broker_properties(number)
        path = self._data_dir / f"broker-{number}.properties"
        if not self._secrets:
            path.unlink(missing_ok=True)  # a killed command leaves its secrets
            return base
        values = {**read_properties(base or conf_dir() / DEFAULT_FILE), **self._secrets}
        write_whole(path, properties_text(values).encode(), SECRET_MODE, replaces=True)
        self._made.append(path)
        return path

    def start(self, number: int) -> None:
        """Start a broker."""
        directory = self._data_dir / f"broker-{number}"
        directory.parent.mkdir(parents=True, exist_ok=True)
        port = self._first_port + number - 1 if self._first_port else 0
        command = [sys.executable, "-m", "millrace.cli.main", "broker", "--data-dir", str(directory)]
        command += ["--until-input-ends"]
        if self._security is None:
            command += ["--listen", f"127.0.0.1:{port}"]
        if (config := self._config(number)) is not None:
            command += ["--config", str(config)]
        for name, value in {**self._options, "broker.id": str(number)}.items():
            command += ["-o", f"{name}={value}"]
        with directory.with_suffix(".log").open("a") as log:
            # A session of its own keeps Ctrl-C from the broker. This command stops the brokers.
            self._processes[number] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                pass_fds=self._held,
            )

    def listening(self) -> Iterator[str]:
        """Yield each broker's line of output once it listens.

        Raises ``EnvironmentProblemError`` if a broker ends instead.
        """
        for number, process in self._processes.items():
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if not line:
                process.wait()
                log = self._data_dir / f"broker-{number}.log"
                reason = log.read_text().strip().splitlines()[-1:]
                raise EnvironmentProblemError(f"broker {number} does not start ({log}): {' '.join(reason)}")
            threading.Thread(target=self._await_end, args=(process,), daemon=True).start()
            self._listening.append(line.rpartition(" ")[2])
            yield line

    @property
    def addresses(self) -> str:
        """The clients' ``bootstrap.servers``."""
        return ",".join(self._listening)

    def _await_end(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if all(each.poll() is not None for each in self._processes.values()):
            self._ended.set()

    def wait(self) -> None:
        """Wait for a signal, or until all brokers have ended."""
        with contextlib.suppress(KeyboardInterrupt):
            self._ended.wait()

    def stop(self) -> None:
        """Stop the brokers cleanly, all at the same time."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for path in self._made:
            path.unlink(missing_ok=True)


@app.command()
def describe(
    as_json: AsJson = False, bootstrap_server: BootstrapServer = None, client_config: ClientConfigFile = None
) -> None:
    """Show the brokers, the controller, the partitions that each broker leads, and partitions with a problem.

    Examples:

      millrace cluster describe
    """
    from millrace.cli.output import print_json, print_table
    from millrace.cli.partition_views import views

    with admin_client(bootstrap_server, client_config) as admin:
        cluster = admin.describe_cluster()
        topics = admin.list_topics(include_internal=True)
        partitions = views(admin, topics, None)
    brokers = [_broker_row(each, cluster.controller_id, topics) for each in cluster.brokers]
    troubled = _troubles(partitions, {each.node_id for each in cluster.brokers})
    columns = ["BROKER", "ADDRESS", "RACK", "CONTROLLER", "LEADS", "REPLICAS"]
    if as_json:
        print_json(
            {
                "cluster_id": cluster.cluster_id,
                "brokers": [dict(zip(map(str.lower, columns), row, strict=True)) for row in brokers],
                "partitions": [
                    dict(zip(("partition", "problem", "isr", "replicas"), row, strict=True)) for row in troubled
                ],
            }
        )
        return
    typer.echo(f"cluster {cluster.cluster_id}: {len(brokers)} brokers, {len(topics)} topics")
    print_table(columns, brokers)
    if troubled:
        typer.echo("")
        print_table(["PARTITION", "PROBLEM", "ISR", "REPLICAS"], troubled)


def _broker_row(broker: Any, controller_id: int, topics: Sequence[TopicDescription]) -> tuple[Any, ...]:
    partitions = [partition for topic in topics for partition in topic.partitions]
    return (
        broker.node_id,
        f"{broker.host}:{broker.port}",
        broker.rack,
        "yes" if broker.node_id == controller_id else "",
        sum(each.leader == broker.node_id for each in partitions),
        sum(broker.node_id in each.replicas for each in partitions),
    )


def _troubles(found: Sequence[PartitionView], alive: set[int]) -> list[tuple[str, str, str, str]]:
    rows = []
    for each in found:
        if problem := _problem(each, alive):
            isr, replicas = (",".join(map(str, ids)) for ids in (each.isr, each.replicas))
            rows.append((f"{each.topic}-{each.partition}", problem, isr, replicas))
    return rows


def _problem(view: PartitionView, alive: set[int]) -> str:
    """Return the partition's most urgent problem, or an empty text."""
    from millrace.cli.partition_views import Trouble, is_in

    if is_in(view, Trouble.UNAVAILABLE, alive, 0):
        return "no leader"
    if is_in(view, Trouble.UNDER_REPLICATED, alive, 0):
        return "not all in sync"
    if view.adding or view.removing:
        return "moving"
    return "not the preferred leader" if view.leader != view.replicas[0] else ""

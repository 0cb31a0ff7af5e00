"""Installation of the suites by the ordinary clients of package registries.

Everything is kept below ``$MILLRACE_CACHE/compat`` (``~/.cache/millrace/compat``). A folder has the file ``.ready``
when its installation came to its end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

KAFKA_VERSION = "4.3.1"
_HERE = Path(__file__).parent
_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_INSTALL_SECONDS_MAX = 1800
_PROGRAMS = {
    "java": "default-jdk-headless",
    "mvn": "maven",
    "npm": "npm",
    "g++": "g++",
    "make": "make",
    "go": "golang-go",
    "curl": "curl",
}
"""Programs with the Debian packages that have them."""
KAFKA_PROGRAMS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
    "connect-distributed": "org.apache.kafka.connect.cli.ConnectDistributed",
    "connect-mirror-maker": "org.apache.kafka.connect.mirror.MirrorMaker",
}
"""Kafka's scripts by the class that each runs. The registry has Kafka's classes, and not its scripts."""


class InstallError(Exception):
    """A failed installation. The message has the end of the output of the command that failed."""


def cache(name: str = "") -> Path:
    """Return a folder of the cache, and create it if necessary."""
    root = Path(os.environ.get("MILLRACE_CACHE") or Path.home() / ".cache" / "millrace")
    folder = (root / "compat" / name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(command: Sequence[str | Path], cwd: Path | None = None, **environment: str) -> str:
    """Run a command of an installation, and return its output. Raises ``InstallError``."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=os.environ | environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_INSTALL_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError:
        raise InstallError(f"{words[0]} is not installed, and make compat needs it") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{' '.join(words)} did not end within {_INSTALL_SECONDS_MAX} s") from None
    if done.returncode:
        raise InstallError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder that ``make`` fills, after the removal of an interrupted installation."""
    folder = cache(name)
    if not (folder / ".ready").exists():
        print(f"installing {name}", flush=True)
        shutil.rmtree(folder)
        folder.mkdir()
        make(folder)
        (folder / ".ready").touch()
    return folder


def programs() -> None:
    """Install the programs that are missing, which other installations need."""
    debian(*(package for program, package in _PROGRAMS.items() if shutil.which(program) is None))


def debian(*packages: str) -> None:
    """Install the Debian packages that are missing."""
    missing = [each for each in packages if not _has_debian(each)]
    if missing:
        run(["apt-get", "update"])
        run(["apt-get", "install", "--yes", "--no-install-recommends", *missing], DEBIAN_FRONTEND="noninteractive")


def _has_debian(package: str) -> bool:
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package], capture_output=True, check=False
    )
    return done.stdout == b"installed"


def maven_repository() -> str:
    """Return the option by which Maven keeps its files in the cache."""
    return f"-Dmaven.repo.local={cache('m2')}"


def kafka() -> Path:
    """Return the folder of a Kafka release with ``libs``, and with the scripts in ``bin``."""

    def make(folder: Path) -> None:
        libs = folder / "libs"
        options = [maven_repository(), f"-Dkafka.version={KAFKA_VERSION}", "-DincludeScope=runtime"]
        run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                _HERE / "kafka-pom.xml",
                _COPY_DEPENDENCIES,
                f"-DoutputDirectory={libs}",
                *options,
            ]
        )
        (folder / "config").mkdir()
        (folder / "config" / "quiet.properties").write_text("rootLogger.level=OFF\n")
        (folder / "bin").mkdir()
        for name, main in KAFKA_PROGRAMS.items():
            _script(folder, name, main)
        _script(folder, "kafka-run-class", "")

    return made_once(f"kafka-{KAFKA_VERSION}", make)


def _script(folder: Path, name: str, main: str) -> None:
    script = folder / "bin" / f"{name}.sh"
    quiet = f"-Dlog4j2.configurationFile={folder}/config/quiet.properties"
    script.write_text(
        "#!/bin/sh\n"
        f"exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 ${{KAFKA_HEAP_OPTS:--Xmx300m}} "
        f'${{KAFKA_LOG4J_OPTS:-{quiet}}} -cp "$CLASSPATH:{folder}/libs/*" {main} "$@"\n'
    )
    script.chmod(0o755)


def npm_tarball(package: str, version: str, part: str, folder: Path) -> None:
    """Put a folder of an npm package at ``folder``, without the package's dependencies and its installation."""
    scratch = cache("scratch")
    archive = run(["npm", "pack", "--silent", f"{package}@{version}"], scratch).split()[-1]
    run(["tar", "xzf", archive, f"package/{part}"], scratch)
    shutil.copytree(scratch / "package" / part, folder, dirs_exist_ok=True)
    shutil.rmtree(scratch)


def virtual_environment(name: str, *requirements: str | Path) -> Path:
    """Return the Python of an environment with these packages."""

    def make(folder: Path) -> None:
        run([sys.executable, "-m", "venv", folder])
        run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements])

    return made_once(name, make) / "bin" / "python"

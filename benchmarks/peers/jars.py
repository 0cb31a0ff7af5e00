"""The peers' JARs, resolved once by Maven.

The POMs are beside this module, and the JARs are kept in the workspace. ``python -m benchmarks.peers.jars kafka``
resolves the jars of a pom and prints their folder.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workspace import BenchmarkError, Workspace

_POMS = Path(__file__).parent / "poms"
_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_RESOLVE_SECONDS_MAX = 900


@dataclass(frozen=True)
class JarSet:
    """One POM with a selection of its dependencies.

    The filters are options of Maven's dependency plugin.
    """

    pom: str
    filters: tuple[str, ...] = ()


KAFKA = JarSet("kafka")
KAFKA_STREAMS = JarSet("kafka-streams")
KAFKA_STREAMS_TEST = JarSet("kafka-streams-test")
KAFKA_ZOOKEEPER = JarSet("kafka-zookeeper")
ZOOKEEPER = JarSet("zookeeper")
# Pyspark already has the other dependencies of these two.
SPARK_KAFKA = JarSet(
    "spark-kafka",
    (
        "-DincludeArtifactIds=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2,"
        "spark-avro_2.13",
    ),
)
DELTA = JarSet("delta", ("-DincludeGroupIds=io.delta,io.unitycatalog,org.antlr",))


def resolve(jars: JarSet, workspace: Workspace) -> Path:
    """Return the folder with the JARs. Maven runs only if the POM has changed since the folder was filled.

    Maven gets a repository of its own, so that remains of a failed run in ``~/.m2`` do no harm.
    """
    pom = _POMS / f"{jars.pom}.xml"
    wanted = hashlib.sha256(pom.read_bytes() + repr(jars.filters).encode()).hexdigest()
    folder = workspace.folder(f"jars/{jars.pom}")
    stamp = folder / ".resolved"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    folder = workspace.folder(f"jars/{jars.pom}", empty=True)
    # Not to the output, which programs with peers use for their answers.
    print(f"  resolving {pom.name} with Maven", file=sys.stderr, flush=True)
    command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={workspace.folder('m2')}", "-f", str(pom), _COPY_DEPENDENCIES]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}", *jars.filters]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS_MAX, check=False)
    except FileNotFoundError:
        raise BenchmarkError("the peers' jars come by Maven: install it (Debian: apt install maven)") from None
    if done.returncode:
        raise BenchmarkError(f"Maven could not resolve {pom}:\n{done.stdout[-2000:]}")
    stamp.write_text(wanted)
    return folder


def paths(jars: JarSet, workspace: Workspace) -> list[Path]:
    """Return the JAR files of a set, and resolve them if necessary."""
    return sorted(resolve(jars, workspace).glob("*.jar"))


if __name__ == "__main__":
    with Workspace() as opened:
        print(resolve(JarSet(sys.argv[1]), opened))

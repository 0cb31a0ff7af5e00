"""Kafka's message definitions, read from jars and kept in one file.

The jars hold a JSON file with comments for each message. ``definitions.json`` has the same content in the same order,
without comments and descriptions. It has a line for each field, so that the difference between two releases of Kafka is
readable as a diff.
"""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from millrace.errors import EnvironmentProblemError

Definition: TypeAlias = dict[str, Any]
"""One message, as in Kafka's JSON."""
FILE: Final = Path(__file__).with_name("definitions.json")
_IN_JAR: Final = re.compile(r"common/message/\w+\.json")
_COMMENT: Final = re.compile(r"^\s*//.*$", re.MULTILINE)
_DROPPED: Final = frozenset(("about", "entityType", "mapKey", "listeners", "zeroCopy"))

LEFT_OUT: Final = re.compile(
    "AddRaftVoter|AllocateProducerIds|AlterPartitionRe(quest|sponse)|AssignReplicasToDirs|BeginQuorumEpoch|Broker|"
    "ControlledShutdown|Controller|DescribeQuorum|EndQuorumEpoch|Envelope|FetchSnapshot|KRaftVersionRecord|"
    "LeaderAndIsr|LeaderChangeMessage|RemoveRaftVoter|SnapshotFooterRecord|SnapshotHeaderRecord|StopReplica|Streams|"
    "UnregisterBroker|UpdateMetadata|UpdateRaftVoter|Vote"
)
"""Messages without a class: those of KRaft's quorum and brokers, of Kafka Streams' groups, and removed ones."""


@dataclass(frozen=True, slots=True)
class Release:
    """Definitions of a release of Kafka, by name."""

    kafka_version: str
    definitions: list[Definition]


def read_jars(folder: Path) -> Release:
    """Read the wanted definitions from the jars of a folder. Raises ``EnvironmentProblemError``."""
    clients = list(folder.glob("kafka-clients-*.jar"))
    if len(clients) != 1:
        raise EnvironmentProblemError(f"{folder} has {len(clients)} kafka-clients-*.jar: expected one release of Kafka")
    version = clients[0].stem.removeprefix("kafka-clients-")
    found: dict[str, Definition] = {}
    for jar in (*clients, *sorted(folder.glob(f"kafka-*-coordinator-{version}.jar"))):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if _IN_JAR.fullmatch(name):
                    definition = json.loads(_COMMENT.sub("", archive.read(name).decode()))
                    found[definition["name"]] = _reduced(definition)
    return Release(version, [found[name] for name in sorted(found) if not LEFT_OUT.match(name)])


def _reduced(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reduced(part) for key, part in value.items() if key not in _DROPPED}
    if isinstance(value, list):
        return [_reduced(part) for part in value]
    return value


def text_of(release: Release) -> str:
    """Return the content of ``definitions.json``."""
    messages = ",\n".join(_lines(definition, 1) for definition in release.definitions)
    return f'{{"kafkaVersion": "{release.kafka_version}", "messages": [\n{messages}\n]}}\n'


def _lines(value: Definition, depth: int) -> str:
    nested = [key for key in ("fields", "commonStructs") if value.get(key)]
    head = ", ".join(f"{json.dumps(key)}: {json.dumps(part)}" for key, part in value.items() if key not in nested)
    indent = " " * depth
    if not nested:
        return f"{indent}{{{head}}}"
    bodies = [
        f'"{key}": [\n' + ",\n".join(_lines(part, depth + 1) for part in value[key]) + f"\n{indent}]" for key in nested
    ]
    return f"{indent}{{{head}, {', '.join(bodies)}}}"


def load() -> Release:
    """Load the committed definitions."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return Release(content["kafkaVersion"], content["messages"])

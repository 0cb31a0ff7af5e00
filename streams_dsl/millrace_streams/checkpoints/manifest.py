"""Manifest of a checkpoint: topology parts that it depends on.

It is in the checkpoint, in ``_millrace/topology.json``. It is written before the query's first batch, and again when a
compatible topology with other nodes resumes. It has no effect before the first planned batch.

Invariant: a reader always sees one complete manifest, because the file gets its name when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.errors import UsageError
from millrace_streams.checkpoints.files import CheckpointFiles
from millrace_streams.checkpoints.sinks import SinkDescription, describe_sinks
from millrace_streams.checkpoints.stores import StoreDescription, describe_stores
from millrace_streams.compiler import Stages
from millrace_streams.errors import IncompatibleStateError
from pyspark_millrace.checkpoints.running import OWN_DIRECTORY

VERSION: Final = 2
_FILE: Final = f"{OWN_DIRECTORY}/topology.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Parts of a topology on which its checkpoint depends.

    ``sources`` are topics with their nodes, in Spark's order. ``moves`` lists for each stage the nodes whose rows come
    in. ``buckets`` is the number of buckets of the state. ``sinks`` are the sinks with their identities. ``partitions``
    has the number of partitions of each topic whose keys are in stores by partition; manifests of earlier versions lack
    it.
    """

    sources: tuple[tuple[str, str], ...]
    moves: tuple[tuple[str, ...], ...]
    buckets: int
    stores: tuple[StoreDescription, ...]
    sinks: tuple[SinkDescription, ...] = ()
    partitions: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        stages: Stages,
        buckets: int,
        partitions: Mapping[str, int] | None = None,
        dead_letters: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Return the manifest of a topology that is cut into stages. ``describe_sinks`` describes ``dead_letters``."""
        readers = zip(stages.plan.readers, stages.prologues, strict=True)
        entered = [(min((send.stage for send in each.sends), default=-1), reader.source) for reader, each in readers]
        # Spark orders sources by their first stage; those without a stage come last.
        last = len(stages.stages)
        entered.sort(key=lambda found: found[0] if found[0] >= 0 else last)
        return cls(
            sources=tuple((source.topic, source.name) for _, source in entered),
            moves=tuple(tuple(send.node for send in stage.receives) for stage in stages.stages),
            buckets=buckets,
            stores=tuple(describe_stores(stages)),
            sinks=tuple(describe_sinks(stages.plan, dead_letters or {})),
            partitions=partitions or {},
        )

    def store(self, name: str) -> StoreDescription:
        """Return a store by name. Raises ``UsageError`` with the existing names."""
        for store in self.stores:
            if store.name == name:
                return store
        known = ", ".join(store.name for store in self.stores) or "none"
        raise UsageError(f"no store is named {name}: the stores are {known}")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "version": VERSION,
            "sources": [list(source) for source in self.sources],
            "moves": [list(move) for move in self.moves],
            "buckets": self.buckets,
            "stores": [store.to_json() for store in self.stores],
            "sinks": [sink.to_json() for sink in self.sinks],
            "partitions": dict(self.partitions),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Manifest:
        """Parse the output of ``to_json``. Raises ``KeyError``, ``TypeError`` and ``ValueError`` for anything else."""
        return cls(
            sources=tuple((topic, node) for topic, node in found["sources"]),
            moves=tuple(tuple(move) for move in found["moves"]),
            buckets=found["buckets"],
            stores=tuple(StoreDescription.from_json(store) for store in found["stores"]),
            sinks=tuple(SinkDescription.from_json(sink) for sink in found["sinks"]),
            partitions={str(topic): int(number) for topic, number in found.get("partitions", {}).items()},
        )


def read_manifest(files: CheckpointFiles) -> Manifest | None:
    """Read the manifest of a checkpoint; returns None if it has none.

    Raises ``IncompatibleStateError`` for another version or a damaged file, and ``EnvironmentProblemError`` if it is
    not readable.
    """
    place = f"{files.location}/{_FILE}"
    text = files.read(_FILE)
    if text is None:
        return None
    try:
        found = json.loads(text)
        version = found["version"]
        if version == VERSION:
            return Manifest.from_json(found)
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleStateError(f"{place} cannot be read ({error}): restore it from a copy") from error
    raise IncompatibleStateError(
        f"{place} has version {version}, but this millrace reads version {VERSION}: use the millrace that wrote it, "
        "rebuild its state (millrace streams rebuild), or start with a new checkpoint"
    )


def write_manifest(files: CheckpointFiles, manifest: Manifest) -> None:
    """Write a manifest to a checkpoint. Raises ``EnvironmentProblemError`` if that fails."""
    files.write(_FILE, json.dumps(manifest.to_json(), indent=1))

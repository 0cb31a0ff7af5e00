"""Compatibility of a topology with a checkpoint of another one.

The check names the nodes that prevent a topology from resuming. A changed topology restores the state of an older one
under three conditions. Its stores have the same names and meanings. It reads its topics in the same order. Its records
are repartitioned to the same stages. Everything else may change: filters, expressions outside keys and aggregates,
functions, names of stateless nodes, sinks, grace and retention. While a micro-batch is unfinished, several sinks of one
topic may not change, because some of them may have the rows of that micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from millrace_streams.checkpoints.files import CheckpointFiles, MountedFiles
from millrace_streams.checkpoints.manifest import Manifest, read_manifest, write_manifest
from millrace_streams.checkpoints.sinks import with_ids_of
from millrace_streams.checkpoints.stores import FOREIGN_KEY, StoreDescription
from millrace_streams.checkpoints.swap import finish_swap
from millrace_streams.errors import IncompatibleStateError
from millrace_streams.serdes import serde_of_field


def admit(now: Manifest, files: CheckpointFiles) -> Manifest:
    """Check that a topology can resume from a checkpoint, and write its manifest.

    Returns the manifest, with the identities under which the sinks write.

    Raises ``IncompatibleStateError`` that names the change in each node.
    """
    if isinstance(files, MountedFiles):
        finish_swap(files.directory)
    before = read_manifest(files)
    planned, finished = (_newest(files.names(log)) for log in ("offsets", "commits"))
    if before is not None and planned >= 0:
        differences = list(differences_between(before, now))
        if differences:
            raise IncompatibleStateError(
                f"{files.location} belongs to another topology: {'; '.join(differences)}. Undo the change, rebuild "
                "the state (millrace streams rebuild), or start with a new checkpoint"
            )
        if planned > finished:
            now = replace(now, sinks=with_ids_of(before.sinks, now.sinks, files.location))
    if before is None or before.to_json() != now.to_json():
        write_manifest(files, now)
    return now


def _newest(names: Iterable[str]) -> int:
    """Return the largest number of a micro-batch among the files of a log, -1 if there is none."""
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def differences_between(before: Manifest, now: Manifest) -> Iterator[str]:
    """Yield the differences that prevent a topology from resuming: a clause for each, naming the node."""
    yield from _changed_sources(before, now)
    yield from _changed_moves(before, now)
    kept = {store.name: store for store in now.stores}
    known = {store.name: store for store in before.stores}
    added = [store for store in now.stores if store.name not in known]
    for store in before.stores:
        if store.name in kept:
            yield from _changed_store(store, kept[store.name])
            continue
        renamed = next((other for other in added if other.meaning == store.meaning), None)
        if renamed is None:
            yield f"{store.node}: its store {store.name} was removed"
        else:
            added.remove(renamed)
            yield (f"{renamed.node}: its store {store.name} is now called {renamed.name}: set store={store.name!r}")
    for store in added:
        yield f"{store.node}: its store {store.name} is new, and would lack the records that were read before"


def _changed_sources(before: Manifest, now: Manifest) -> Iterator[str]:
    topics, new_topics = ([topic for topic, _ in each.sources] for each in (before, now))
    if topics == new_topics:
        return
    for topic, node in now.sources:
        if topic not in topics:
            yield f"{node}: it reads the topic {topic}, which was not read before"
    for topic, node in before.sources:
        if topic not in new_topics:
            yield f"{node}: the topic {topic} is no longer read"
    if sorted(topics) == sorted(new_topics):
        yield f"{now.sources[0][1]}: topics are read in the order {', '.join(new_topics)}, before {', '.join(topics)}"


def _changed_moves(before: Manifest, now: Manifest) -> Iterator[str]:
    stages, new_stages = len(before.moves), len(now.moves)
    if stages != new_stages:
        [node, *_] = max(before.moves, now.moves, key=len)[-1]
        yield f"{node}: records move in {new_stages} stages, before in {stages}"
    if before.stores and now.stores and before.buckets != now.buckets:
        yield (
            f"{now.sources[0][1]}: the state has {before.buckets} buckets, but the topology now has {now.buckets}, "
            "the partitions of its largest topic"
        )
        return
    for topic, node in now.sources:
        old, new = before.partitions.get(topic), now.partitions.get(topic)
        if old is not None and new is not None and old != new:
            yield f"{node}: {topic} has {new} partitions, before {old}, and its keys are now in others"


def _changed_store(before: StoreDescription, now: StoreDescription) -> Iterator[str]:
    for what in (*before.meaning, *(name for name in now.meaning if name not in before.meaning)):
        old, new = before.meaning.get(what, "none"), now.meaning.get(what, "none")
        if old != new and (what != FOREIGN_KEY or what in before.meaning):
            yield f"{now.node}: {what} of its store {now.name}: {new}, before {old}"
    if before.everywhere != now.everywhere:
        held = ("a part of its store", "its whole store")
        yield (
            f"{now.node}: each bucket has {held[now.everywhere]} {now.name}, before {held[before.everywhere]} "
            "(table and global_table)"
        )
    for name, column in now.columns.items():
        known = before.columns.get(name)
        if known is not None and known.type == column.type and _serde(known) != _serde(column):
            yield f"{now.node}: {name} of its store {now.name} is of {_serde(column)}, before of {_serde(known)}"


def _serde(column: pa.Field) -> str:
    return serde_of_field(column).name if column.metadata else str(column.type)

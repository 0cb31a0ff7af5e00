"""The remote part of one partition: its complete segments in the store.

Invariants:

- A copy is part of the log exactly if its manifest exists in the store. ``load`` lists the manifests and removes
  objects without one, so the broker needs no file of its own to recover after a crash.
- The tuple of segments is replaced, never changed, so that readers need no lock. Only one thread at a time changes it;
  ``RemoteLogManager`` ensures that.
- ``end_offset`` grows only after a copy is published. The local segments before it, back to the first remote segment,
  may be deleted.
- Only the partition's leader changes the store; followers ``look`` repeatedly.
- A segment leaves the tuple before its objects are removed. Its manifest is removed first, and older segments before
  newer ones. So an interrupted removal leaves no gap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from millrace.errors import CorruptBatchError, RemoteStorageError
from millrace.segments.names import LOG
from millrace_broker.log.segment_list import floor
from millrace_broker.log.tiered.cache import RemoteCache
from millrace_broker.log.tiered.manifest import Manifest
from millrace_broker.log.tiered.names import (
    COPIED_SUFFIXES,
    ManifestName,
    manifest_name,
    object_name,
    parse_manifest_name,
    parse_object_name,
)
from millrace_broker.log.tiered.remote_segment import RemoteSegment
from millrace_broker.log.tiered.store import RemoteObject, RemoteStore

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogStatistics:
    """The remote part of a partition in numbers. ``problem`` is the error of the last failed work, if any."""

    is_loaded: bool
    segments: int
    size_bytes: int
    start_offset: int
    end_offset: int
    copied_segments: int
    copied_bytes: int
    expired_segments: int
    problem: str | None


class RemoteLog:
    """The copies of a partition in the remote store. Reads are safe from any thread."""

    def __init__(
        self, name: str, folder: str, store: RemoteStore, cache: RemoteCache, *, index_interval_bytes: int
    ) -> None:
        self.name: Final = name
        self.folder: Final = folder
        self.store: Final = store
        self._cache: Final = cache
        self._index_interval_bytes: Final = index_interval_bytes
        self._segments: tuple[RemoteSegment, ...] = ()
        self._doomed: tuple[RemoteSegment, ...] = ()
        self._is_loaded = False
        self._copied_segments = self._copied_bytes = self._expired_segments = 0
        self.problem: str | None = None
        self.must_list = True
        """True if the store must be listed (again)."""

    @property
    def is_loaded(self) -> bool:
        """True if the store has been listed."""
        return self._is_loaded

    @property
    def segments(self) -> tuple[RemoteSegment, ...]:
        """The segments in the store, by offset."""
        return self._segments

    @property
    def end_offset(self) -> int:
        """The offset up to which (exclusive) copies exist; 0 if there are none, or before the first listing."""
        segments = self._segments
        return segments[-1].end_offset if segments else 0

    @property
    def start_offset(self) -> int | None:
        """The first offset in the store; None if there are no copies, or before the first listing."""
        segments = self._segments
        return segments[0].base_offset if segments else None

    @property
    def size_bytes(self) -> int:
        """The size of the remote segments, without indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    def statistics(self) -> RemoteLogStatistics:
        """Return the present numbers."""
        return RemoteLogStatistics(
            is_loaded=self._is_loaded,
            segments=len(self._segments),
            size_bytes=self.size_bytes,
            start_offset=-1 if self.start_offset is None else self.start_offset,
            end_offset=self.end_offset,
            copied_segments=self._copied_segments,
            copied_bytes=self._copied_bytes,
            expired_segments=self._expired_segments,
            problem=self.problem,
        )

    # --- reads ---------------------------------------------------------------------------------------------

    def before(self, local_base_offset: int, start_offset: int) -> tuple[RemoteSegment, ...]:
        """Return the segments from the one with ``start_offset`` on that begin before the first local segment.

        Raises ``RemoteStorageError`` before the first listing.
        """
        if not self._is_loaded:
            why = f" ({self.problem})" if self.problem else ""
            raise RemoteStorageError(
                f"offset {start_offset} of {self.name} is in the remote store, which has not answered yet{why}: "
                "try again"
            )
        segments = self._segments
        if not segments:
            return ()
        return segments[floor(segments, start_offset) : floor(segments, local_base_offset - 1) + 1]

    def check_complete(self, start_offset: int, end_offset: int, local_base_offset: int) -> None:
        """Raise ``CorruptBatchError`` if offsets of a range are neither in the store nor in the local segments."""
        segments = self._segments
        end_offset = min(end_offset, local_base_offset)
        expected = start_offset
        for segment in segments[floor(segments, start_offset) :] if segments else ():
            if segment.base_offset > expected or expected >= end_offset:
                break
            expected = max(expected, segment.end_offset)
        if expected < end_offset:
            later = [each.base_offset for each in segments if each.base_offset > expected]
            found = min(later, default=local_base_offset)
            raise CorruptBatchError(
                f"offsets {expected}..{found - 1} of {self.name} are neither on the disk nor in the remote store "
                f"({self.folder}): restore them in the remote store, or delete records up to {found}"
            )

    # --- listing -------------------------------------------------------------------------------------------

    def load(self, log_end_offset: int) -> None:
        """List the store, and remove objects that are not part of it.

        Raises ``RemoteStorageError``. Raises ``CorruptBatchError`` if the store has offsets that the log on the disk,
        which ends at ``log_end_offset``, has lost. New records with these offsets must not be confused with the copies.
        """
        objects = self.store.list(self.folder)
        kept, second = self._listed(objects)
        for manifest in second:
            _LOG.warning("%s: %s is a duplicate copy and is removed", self.name, manifest_name(manifest))
            self._remove(manifest)
        self._remove_orphans(objects)
        for before, after in pairwise(kept):
            if after.base_offset > before.end_offset:
                lost = f"{before.end_offset}..{after.base_offset - 1}"
                _LOG.error("%s: offsets %s are missing in the remote store", self.name, lost)
        if kept and kept[-1].end_offset > log_end_offset:
            raise CorruptBatchError(
                f"{self.name} ends at offset {log_end_offset} on the disk, but its copies in the remote store end at "
                f"{kept[-1].end_offset}, so the disk has lost records: restore its directory, or delete the topic"
            )
        self._segments = tuple(kept)
        self._is_loaded, self.must_list = True, False

    def look(self) -> None:
        """List the store, for a follower; nothing is removed, because the leader may be copying.

        Raises ``RemoteStorageError``.
        """
        kept, _ = self._listed(self.store.list(self.folder))
        for gone in set(self._segments).difference(kept):
            gone.release()
        self._segments, self._is_loaded = tuple(kept), True
        self.must_list = True  # if this broker becomes the leader, it lists the store again

    def _listed(self, objects: Iterable[RemoteObject]) -> tuple[list[RemoteSegment], list[ManifestName]]:
        """Return the segments in the store, by offset, and the manifests of their second copies."""
        by_name = {item.name: item for item in objects}
        manifests = [parsed for name in by_name if (parsed := parse_manifest_name(name)) is not None]
        manifests.sort(key=lambda manifest: (manifest.copy.base_offset, -manifest.end_offset))
        known = {segment.name: segment for segment in self._segments}
        kept: list[RemoteSegment] = []
        second: list[ManifestName] = []
        for manifest in manifests:
            log_object = by_name.get(object_name(manifest.copy, LOG))
            if log_object is None:
                _LOG.error("%s: the copy %s has no .log in the remote store", self.name, manifest_name(manifest))
            elif kept and manifest.end_offset <= kept[-1].end_offset:
                second.append(manifest)
            else:
                found = known.get(manifest)
                kept.append(found or self._segment(manifest, log_object.size_bytes, log_object.modified_ms))
        return kept, second

    def _segment(self, manifest: ManifestName, size_bytes: int, copied_ms: int) -> RemoteSegment:
        return RemoteSegment(
            self.store,
            self.folder,
            manifest,
            size_bytes=size_bytes,
            copied_ms=copied_ms,
            index_interval_bytes=self._index_interval_bytes,
            cache=self._cache,
        )

    def _remove_orphans(self, objects: Iterable[RemoteObject]) -> None:
        manifests = (parse_manifest_name(item.name) for item in objects)
        complete = {manifest.copy for manifest in manifests if manifest is not None}
        for item in objects:
            parsed = parse_object_name(item.name)
            if parsed is not None and parsed[0] not in complete:
                _LOG.info("%s: removing %s of an unfinished copy", self.name, item.name)
                self.store.remove(self.folder, item.name)

    # --- changes -------------------------------------------------------------------------------------------

    def add(self, manifest: Manifest) -> None:
        """Add a copy that has just been published."""
        size_bytes = manifest.objects[LOG].size_bytes
        self._segments = (*self._segments, self._segment(manifest.name, size_bytes, manifest.copied_ms))
        self._copied_segments += 1
        self._copied_bytes += size_bytes

    def drop(self, count: int) -> None:
        """Remove the oldest segments from the log. The caller has moved the log start offset past them."""
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._doomed += gone
        self._expired_segments += len(gone)
        for segment in gone:
            segment.release()

    def remove_dropped(self) -> None:
        """Remove the objects of dropped segments, oldest first. Raises ``RemoteStorageError``; a later call retries."""
        while self._doomed:
            self._remove(self._doomed[0].name)
            self._doomed = self._doomed[1:]

    def _remove(self, manifest: ManifestName) -> None:
        self.store.remove(self.folder, manifest_name(manifest))
        for suffix in COPIED_SUFFIXES:
            self.store.remove(self.folder, object_name(manifest.copy, suffix))

    def release(self) -> None:
        """Release all memory."""
        for segment in self._segments:
            segment.release()

"""Parallel loading of the partitions of all log directories, with progress.

Each directory has its own threads (``num.recovery.threads.per.data.dir``), because each is a disk of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from millrace.errors import InvalidTopicError, StorageError
from millrace.segments.names import DELETED_DIRECTORY, parse_partition_directory_name
from millrace_broker.log.data_directory import AUDIT_SPOOL, DataDirectory

_LOG: Final = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called with the number of loaded partitions, the number of all partitions, and the name of the latest."""


def find_partitions(directory: DataDirectory) -> list[str]:
    """Return the names of the partition directories, and remove those of unfinished deletions and creations.

    A directory whose disk fails is taken offline, and has none.
    """
    files, partitions = directory.files, []
    try:
        # A rename may not be on the disk yet. Without a sync, a power failure could remove the files but bring the old
        # name back.
        files.sync_directory(directory.path)
        for name in files.names(directory.path):
            if name == AUDIT_SPOOL or not files.is_directory(directory.path / name):
                continue
            if name.endswith(DELETED_DIRECTORY):
                files.remove_tree(directory.path / name)
                continue
            try:
                parse_partition_directory_name(name)
            except InvalidTopicError:
                _LOG.warning("%s is not a partition directory and is ignored", directory.path / name)
                continue
            partitions.append(name)
    except StorageError as error:
        directory.fail(error)
        return []
    return partitions


def load_all(
    found: Sequence[tuple[DataDirectory, Sequence[str]]],
    load: Callable[[DataDirectory, str], None],
    *,
    threads_per_directory: int,
    on_progress: Progress,
) -> None:
    """Call ``load`` for each partition, in several threads, and ``on_progress`` after each.

    Raises the error of ``load``, after the partitions that are loading have finished.
    """
    progress = _Counting(sum(len(names) for _, names in found), on_progress)
    workers = []
    for directory, names in found:
        waiting = deque(names)
        worker = _Worker(directory, waiting, load, progress)
        workers += [worker] * min(threads_per_directory, len(names))
    if len(workers) <= 1:
        for worker in workers:
            worker.run()
        return
    with ThreadPoolExecutor(len(workers), thread_name_prefix="millrace-recovery") as pool:
        running = [pool.submit(worker.run) for worker in workers]
        try:
            for each in running:
                each.result()
        finally:
            for worker in workers:
                worker.waiting.clear()


class _Counting:
    def __init__(self, total: int, on_progress: Progress) -> None:
        self._lock: Final = threading.Lock()
        self._loaded = 0
        self._total: Final = total
        self._on_progress: Final = on_progress

    def loaded(self, name: str) -> None:
        with self._lock:
            self._loaded += 1
            self._on_progress(self._loaded, self._total, name)


class _Worker:
    """A worker that loads the ``waiting`` partitions of a directory in turn."""

    def __init__(
        self,
        directory: DataDirectory,
        waiting: deque[str],
        load: Callable[[DataDirectory, str], None],
        progress: _Counting,
    ) -> None:
        self.waiting: Final = waiting
        self._directory: Final = directory
        self._load: Final = load
        self._progress: Final = progress

    def run(self) -> None:
        while True:
            try:
                name = self.waiting.popleft()
            except IndexError:
                return
            self._load(self._directory, name)
            self._progress.loaded(name)

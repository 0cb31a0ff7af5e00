"""Probe of a directory for Spark's faster checkpoint manager.

``FileSystemBasedCheckpointFileManager`` writes a temporary file and renames it. That saves about 45 ms per micro-batch
compared with the default manager (docs/design/0006-spark-source.md). The manager is safe only if a rename over an
existing file is atomic. Then a reader sees either the old content or the new content, complete, and the file is never
missing. POSIX requires that of local file systems. Object stores do not provide it, and network file systems provide it
for one host only.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

_RENAMES: Final = 400
_READS: Final = 100
_LOCAL_FILE_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "f2fs"}
)


@dataclass(frozen=True, slots=True)
class RenameProbe:
    """Result of the probe, with its reason as a sentence."""

    safe: bool
    reason: str


def probe_rename(directory: str | Path) -> RenameProbe:
    """Probe whether renames in ``directory`` (a path or ``file:`` URI, created if missing) are atomic for readers.

    Takes about 50 ms and leaves no files. Never raises; a directory that cannot be probed counts as unsafe.
    """
    url = urlparse(str(directory))
    if url.scheme not in ("", "file"):
        return RenameProbe(False, f"{directory} is not a local file system")
    path = Path(unquote(url.path) if url.scheme else str(directory)).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        kind = _file_system(path)
        if kind is not None and kind not in _LOCAL_FILE_SYSTEMS:
            return RenameProbe(False, f"{path} is on {kind}, on which it is not known whether renames are atomic")
        with tempfile.TemporaryDirectory(dir=path, prefix=".rename-probe-") as scratch:
            fault = _try_renames(Path(scratch))
    except OSError as error:
        return RenameProbe(False, f"{path}: {error.strerror}")
    if fault is not None:
        return RenameProbe(False, f"renames in {path} are not atomic: {fault}")
    return RenameProbe(True, f"{_RENAMES} renames over a file that was being read in {path} ({kind}) were atomic")


def _try_renames(scratch: Path) -> str | None:
    """Replace a file repeatedly while a thread reads it; returns the fault that the reader saw, or None.

    A busy machine may not run the reader for a while, so renames go on until it has read often enough.
    """
    target = scratch / "target"
    target.write_bytes(_content(0))
    faults: list[str] = []
    reads = 0
    done = threading.Event()

    def read() -> None:
        nonlocal reads
        newest = 0
        while not done.is_set() and not faults:
            try:
                content = target.read_bytes()
            except FileNotFoundError:
                faults.append("the file was missing for a moment")
                return
            except OSError as error:
                faults.append(f"the file could not be read: {error.strerror}")
                return
            number = int.from_bytes(content[:8], "big")
            if content != _content(number):
                faults.append("a half-written file was seen")
            elif number < newest:
                faults.append("the old content was seen after the new")
            newest = number
            reads += 1

    reader = threading.Thread(target=read, name="rename-probe", daemon=True)
    reader.start()
    number = 0
    while not faults and (number < _RENAMES or reads < _READS):
        number += 1
        temporary = scratch / f"temporary-{number}"
        temporary.write_bytes(_content(number))
        os.rename(temporary, target)
    done.set()
    reader.join()
    return faults[0] if faults else None


def _content(number: int) -> bytes:
    # Contents differ in length, so that a mixture of two is detected.
    return number.to_bytes(8, "big") * (64 + number % 64)


def _file_system(path: Path) -> str | None:
    """Return the type of the file system that holds ``path``; None if the system does not report it (macOS)."""
    try:
        mounts = Path("/proc/self/mounts").read_text()
    except OSError:
        return None
    best, kind = "", None
    for line in mounts.splitlines():
        _, mount_point, file_system, *_ = line.split(" ")
        mount_point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), mount_point)
        if path.resolve().is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, file_system
    return kind

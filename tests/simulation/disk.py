"""A disk in memory that loses unsynced changes in a power failure.

It is ``Files`` for the log. It models two ends of a process, each as a new disk. The old disk continues:

* ``after_kill``: the process dies. The operating system keeps all writes, synced or not.
* ``after_power_loss``: only synced changes are sure. Any later change is there completely, partly or not at all, in any
  order. This applies to a file's content since ``File.sync``, and to a directory's names since ``sync_directory``.

The given generators make all random choices, so a seed replays a run. The disk calls ``on_step`` before every change,
also in the middle of a write. ``fail`` makes operations below a path fail as the operating system would.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace.errors import DiskFullError, EnvironmentProblemError, StorageError
from millrace_broker.log.files import Part

_TEAR = 0.3
_GARBAGE = 0.05


@dataclass(frozen=True, slots=True)
class Write:
    """A change of a file since its last sync.

    A change is written bytes, or a new size without bytes.
    """

    position: int
    data: bytes | None


@dataclass(eq=False, slots=True)
class FileNode:
    """A file with a visible and a durable content.

    The file also has the changes between the two.
    """

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Write] = field(default_factory=list)
    modified_ms: int = 0

    def change(self, change: Write) -> None:
        apply(self.content, change)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable, self.pending = bytes(self.content), []


@dataclass(frozen=True, slots=True)
class Naming:
    """A change to a directory's names. ``node`` now has the name ``name``, and no longer ``former``."""

    name: str | None
    node: FileNode | DirectoryNode | None
    former: str | None = None


@dataclass(eq=False, slots=True)
class DirectoryNode:
    """A directory with visible and durable names.

    The directory also has the changes between the two, as a file has.
    """

    names: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    durable: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    pending: list[Naming] = field(default_factory=list)

    def change(self, change: Naming) -> None:
        rename(self.names, change)
        self.pending.append(change)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.names), []


Node = FileNode | DirectoryNode


def apply(content: bytearray, change: Write) -> None:
    if change.data is None:
        del content[change.position :]
        content.extend(bytes(change.position - len(content)))
    else:
        content.extend(bytes(max(change.position - len(content), 0)))
        content[change.position : change.position + len(change.data)] = change.data


def rename(names: dict[str, Node], change: Naming) -> None:
    if change.former is not None:
        names.pop(change.former, None)
    if change.name is not None and change.node is not None:
        names[change.name] = change.node


class SimulatedDisk:
    """The disk of this module. Paths are absolute. The root exists and is durable."""

    def __init__(self, root: DirectoryNode | None = None, *, seed: int = 0) -> None:
        self.root = DirectoryNode() if root is None else root
        self.on_step: Callable[[], None] = lambda: None
        self.now_ms: Callable[[], int] = lambda: 0
        self.steps = 0
        self.locked: set[Path] = set()
        self._choose = random.Random(seed)
        self._failures: list[tuple[Path, int, frozenset[str]]] = []

    # --- the ends of a process -------------------------------------------------------------------------------

    def after_kill(self) -> SimulatedDisk:
        """Return the disk as the next process finds it after this one was killed."""
        return self._copy(_Copy())

    def after_power_loss(self, choose: random.Random) -> SimulatedDisk:
        """Return a possible disk after a power failure."""
        return self._copy(_PowerLoss(choose))

    def _copy(self, copying: _Copy) -> SimulatedDisk:
        disk = SimulatedDisk(copying.directory(self.root), seed=self._choose.randrange(2**32))
        disk.now_ms = self.now_ms
        return disk

    # --- failing ---------------------------------------------------------------------------------------------

    def fail(self, path: Path, code: int, actions: Sequence[str] = ()) -> None:
        """Let operations on ``path`` and below fail with an errno. ``actions`` are their verbs, or empty for all."""
        self._failures.append((path, code, frozenset(actions)))

    def fill(self, path: Path) -> None:
        """Let the operations on ``path`` and below fail that need space."""
        self.fail(path, errno.ENOSPC, ["write", "create", "make directory"])

    def mend(self) -> None:
        """Let all operations work again."""
        self._failures.clear()

    def check(self, action: str, path: Path) -> None:
        for failing, code, actions in self._failures:
            if path.is_relative_to(failing) and (not actions or action in actions):
                error = DiskFullError if code == errno.ENOSPC else StorageError
                raise error(f"cannot {action} {path}: {os.strerror(code)}") from OSError(code, os.strerror(code))

    def step(self, action: str, path: Path) -> None:
        self.steps += 1
        self.check(action, path)
        self.on_step()

    def cut(self, size_bytes: int) -> int:
        """Draw where a write of so many bytes is interrupted."""
        return self._choose.randint(0, size_bytes)

    # --- lookup ----------------------------------------------------------------------------------------------

    def _find(self, path: Path) -> Node | None:
        node: Node = self.root
        for name in path.parts[1:]:
            if not isinstance(node, DirectoryNode) or name not in node.names:
                return None
            node = node.names[name]
        return node

    def _file(self, path: Path) -> FileNode | None:
        node = self._find(path)
        return node if isinstance(node, FileNode) else None

    def _directory(self, path: Path, action: str) -> DirectoryNode:
        node = self._find(path)
        if isinstance(node, DirectoryNode):
            return node
        raise _missing(action, path)

    # --- Files -----------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        self.check("open", path)
        node = self._file(path)
        if node is None:
            if not create:
                raise _missing("open", path)
            self.step("create", path)
            node = FileNode(modified_ms=self.now_ms())
            self._directory(path.parent, "open").change(Naming(path.name, node))
        return SimulatedFile(self, path, node)

    def open_read_only(self, path: Path) -> SimulatedFile | None:
        self.check("open", path)
        node = self._file(path)
        return None if node is None else SimulatedFile(self, path, node)

    def map(self, path: Path) -> memoryview | None:
        data = self.read_bytes(path)
        return None if data is None else memoryview(data)

    def read_bytes(self, path: Path) -> bytes | None:
        self.check("read", path)
        node = self._file(path)
        return None if node is None else bytes(node.content)

    def names(self, directory: Path) -> list[str]:
        self.check("list", directory)
        node = self._find(directory)
        return sorted(node.names) if isinstance(node, DirectoryNode) else []

    def is_directory(self, path: Path) -> bool:
        return isinstance(self._find(path), DirectoryNode)

    def size_bytes(self, path: Path) -> int | None:
        self.check("stat", path)
        node = self._file(path)
        return None if node is None else len(node.content)

    def modified_ms(self, path: Path) -> int | None:
        self.check("stat", path)
        node = self._file(path)
        return None if node is None else node.modified_ms

    def forget_cached(self, path: Path) -> None:
        """Do nothing, because reads of this disk never return bytes whose write failed."""

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        self.check("set the time of", path)
        node = self._file(path)
        if node is None:
            raise _missing("set the time of", path)
        node.modified_ms = time_ms

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, "a log renames within a directory only"
        self.step("rename", source)
        directory = self._directory(source.parent, "rename")
        if source.name not in directory.names:
            raise _missing("rename", source)
        directory.change(Naming(target.name, directory.names[source.name], source.name))

    def remove(self, path: Path) -> None:
        if self._file(path) is not None:
            self.step("remove", path)
            self._directory(path.parent, "remove").change(Naming(None, None, path.name))

    def make_directory(self, path: Path) -> None:
        node = self.root
        for name in path.parts[1:]:
            if name not in node.names:
                self.step("make directory", path)
                node.change(Naming(name, DirectoryNode()))
            below = node.names[name]
            if not isinstance(below, DirectoryNode):
                raise _missing("make directory", path)
            node = below

    def remove_tree(self, path: Path) -> None:
        node = self._find(path)
        if isinstance(node, DirectoryNode):
            for name in sorted(node.names):
                below = path / name
                if self.is_directory(below):
                    self.remove_tree(below)
                else:
                    self.remove(below)
            self.step("remove", path)
            self._directory(path.parent, "remove").change(Naming(None, None, path.name))

    def sync_directory(self, path: Path) -> None:
        self.step("sync", path)
        self._directory(path, "sync").sync()

    def lock(self, path: Path) -> SimulatedLock:
        self.check("lock", path)
        if path in self.locked:
            raise EnvironmentProblemError(f"{path.parent} is in use by another broker")
        self.open(path, create=True)
        self.locked.add(path)
        return SimulatedLock(self, path)

    # --- for tests -------------------------------------------------------------------------------------------

    def paths(self, under: Path) -> list[Path]:
        """Return every file below a path."""
        found = []
        for name in self.names(under):
            path = under / name
            found += self.paths(path) if self.is_directory(path) else [path]
        return found

    def flip(self, path: Path, bit: int) -> None:
        """Flip a bit of a file without any notice."""
        node = self._file(path)
        assert node is not None
        node.content[bit // 8] ^= 1 << bit % 8
        node.sync()


class SimulatedFile:
    """An open file of the disk."""

    def __init__(self, disk: SimulatedDisk, path: Path, node: FileNode) -> None:
        self._disk = disk
        self._path = path
        self._node = node

    def read(self, position: int, size_bytes: int) -> bytes:
        self._disk.check("read", self._path)
        return bytes(self._node.content[position : position + size_bytes])

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return True

    def write(self, position: int, parts: Sequence[Part]) -> None:
        data = b"".join(bytes(part) for part in parts)
        cut = self._disk.cut(len(data))
        for start, end in ((0, cut), (cut, len(data))):
            if start < end:
                self._disk.step("write", self._path)
                self._change(Write(position + start, data[start:end]))

    def truncate(self, size_bytes: int) -> None:
        if size_bytes != len(self._node.content):
            self._disk.step("truncate", self._path)
            self._change(Write(size_bytes, None))

    def _change(self, change: Write) -> None:
        self._node.change(change)
        self._node.modified_ms = self._disk.now_ms()

    def size_bytes(self) -> int:
        self._disk.check("stat", self._path)
        return len(self._node.content)

    def sync(self) -> None:
        self._disk.step("sync", self._path)
        self._node.sync()

    def close(self) -> None:
        """Do nothing, because there is no handle."""


class SimulatedLock:
    """A directory's lock."""

    def __init__(self, disk: SimulatedDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        with contextlib.suppress(KeyError):
            self._disk.locked.remove(self._path)


class _Copy:
    """A copier of a disk without changes."""

    def __init__(self) -> None:
        self._copies: dict[int, Node] = {}

    def directory(self, node: DirectoryNode) -> DirectoryNode:
        return DirectoryNode(
            {name: self._node(below) for name, below in node.names.items()},
            {name: self._node(below) for name, below in node.durable.items()},
            [
                Naming(change.name, None if change.node is None else self._node(change.node), change.former)
                for change in node.pending
            ],
        )

    def file(self, node: FileNode) -> FileNode:
        return FileNode(bytearray(node.content), node.durable, list(node.pending), node.modified_ms)

    def _node(self, node: Node) -> Node:
        copy = self._copies.get(id(node))
        if copy is None:
            copy = self.directory(node) if isinstance(node, DirectoryNode) else self.file(node)
            self._copies[id(node)] = copy
        return copy


class _PowerLoss(_Copy):
    """A copier of what is left of a disk. ``_kept`` is the probability that an unsynced change is there."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        self._choose = choose
        self._kept = choose.choice([0.0, 0.3, 0.5, 0.7, 0.95, 1.0])

    def directory(self, node: DirectoryNode) -> DirectoryNode:
        names = dict(node.durable)
        for change in node.pending:
            if self._choose.random() < self._kept:
                rename(names, change)
        copied = {name: self._node(below) for name, below in sorted(names.items())}
        return DirectoryNode(copied, dict(copied))

    def file(self, node: FileNode) -> FileNode:
        content = bytearray(node.durable)
        for change in node.pending:
            self._write(content, change)
        return FileNode(content, bytes(content), [], node.modified_ms)

    def _write(self, content: bytearray, change: Write) -> None:
        is_kept = self._choose.random() < self._kept
        if change.data is None or not change.data:
            if is_kept:
                apply(content, change)
        elif not is_kept:
            if self._choose.random() < _TEAR:  # the new size is on the disk, and the bytes are not
                size = len(change.data)
                filling = self._choose.randbytes(size) if self._choose.random() < _GARBAGE else bytes(size)
                beyond = max(change.position + size - len(content), 0)
                if beyond:
                    apply(content, Write(len(content), filling[-beyond:]))
        elif self._choose.random() < _TEAR:
            start, end = sorted(self._choose.choices(range(len(change.data) + 1), k=2))
            start = 0 if self._choose.random() < 0.5 else start
            apply(content, Write(change.position + start, change.data[start:end]))
        else:
            apply(content, change)


def _missing(action: str, path: Path) -> StorageError:
    error = StorageError(f"cannot {action} {path}: {os.strerror(errno.ENOENT)}")
    error.__cause__ = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return error

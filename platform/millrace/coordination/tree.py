"""Tree of nodes as plain data, with the operations on it.

Operations return their results and watch events. The tree has no threads, files or session lifetimes, because
``EmbeddedStore`` adds those.

Invariants

* Every node but the root has a parent, and the parent's ``children`` holds its name.
* A node with an ephemeral owner has no children; ``ephemeral_children`` counts a node's ephemeral ones.
* ``last_id`` only grows; each applied transaction takes the next number.
* ``apply`` leaves the tree unchanged if any of the operations fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millrace.coordination.interface import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    NotEmptyError,
    Operation,
    WatchEvent,
    Write,
)
from millrace.errors import InvalidRequestError


@dataclass(slots=True)
class Node:
    """One node; mutable, owned by its tree."""

    data: bytes = b""
    version: int = 0
    children_version: int = 0
    created_id: int = 0
    modified_id: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    ephemeral_owner: int = 0
    children: set[str] = field(default_factory=set)
    ephemeral_children: int = 0

    @property
    def children_created(self) -> int:
        """Number of children ever created: each creation and each deletion increased the children version."""
        return (self.children_version + len(self.children)) // 2

    def stat(self) -> NodeStat:
        """Return the node's stat."""
        return NodeStat(
            version=self.version,
            children_version=self.children_version,
            created_id=self.created_id,
            modified_id=self.modified_id,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
            ephemeral_owner=self.ephemeral_owner,
            children=len(self.children),
        )


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a transaction.

    ``results`` has each operation's result, ``touched`` the paths of written and deleted nodes. ``events`` are in
    order.
    """

    results: list[str | NodeStat | None]
    touched: frozenset[str]
    events: list[WatchEvent]


def parent_of(path: str) -> str:
    """Return the path of the parent of ``path``."""
    return path[: path.rindex("/")] or "/"


def check_path(path: str) -> None:
    """Raise ``InvalidRequestError`` unless the path is absolute and normalised."""
    if path == "/":
        return
    if not path.startswith("/") or any(name in ("", ".", "..") for name in path[1:].split("/")) or "\0" in path:
        raise InvalidRequestError(f"{path!r} is not a node path: expected /name/name without empty, . or .. parts")


def check_operation(operation: Operation) -> None:
    """Raise ``InvalidRequestError`` for an operation that is invalid for any tree."""
    path = operation.path
    # A sequential node may end in "/": then the suffix is its whole name.
    check_path(path + "0" if isinstance(operation, Create) and operation.sequential else path)
    if isinstance(operation, Delete) and path == "/":
        raise InvalidRequestError("the root cannot be deleted")


class Tree:
    """All nodes by path."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node()}
        self.last_id = 0

    def node(self, path: str) -> Node:
        """Return the node at ``path``. Raises ``NoNodeError``."""
        check_path(path)
        try:
            return self.nodes[path]
        except KeyError:
            raise NoNodeError(f"{path} does not exist") from None

    def ephemerals_of(self, owner: int) -> list[str]:
        """Return the paths of a session's ephemeral nodes, sorted."""
        return sorted(path for path, node in self.nodes.items() if node.ephemeral_owner == owner)

    def apply(
        self,
        operations: Sequence[Operation],
        *,
        owner: int,
        now_ms: int,
        save: Callable[[frozenset[str]], None] | None = None,
    ) -> Change:
        """Apply all operations or none. ``owner`` is the session that owns new ephemeral nodes.

        ``save`` makes the nodes at the given paths durable; if it fails, the tree is unchanged.
        """
        for operation in operations:
            check_operation(operation)
        transaction = _Transaction(self, owner, now_ms)
        self.last_id += 1
        try:
            results = [transaction.apply(operation) for operation in operations]
            if save is not None and transaction.touched:
                save(frozenset(transaction.touched))
        except BaseException:
            transaction.undo()
            self.last_id -= 1
            raise
        return Change(results, frozenset(transaction.touched), transaction.events)


class _Transaction:
    """Transaction in place. Its operations can be undone in reverse order."""

    def __init__(self, tree: Tree, owner: int, now_ms: int) -> None:
        self._tree = tree
        self._owner = owner
        self._now_ms = now_ms
        self._id = tree.last_id + 1  # the value that ``apply`` gives ``last_id``
        self._undo: list[Callable[[], None]] = []
        self.touched: set[str] = set()
        self.events: list[WatchEvent] = []

    def apply(self, operation: Operation) -> str | NodeStat | None:
        match operation:
            case Create():
                return self._create(operation)
            case Write():
                return self._write(operation)
            case Delete():
                self._delete(operation)
                return None
            case Check():
                self._expect(operation.path, operation.version)
                return None

    def undo(self) -> None:
        for step in reversed(self._undo):
            step()

    def _expect(self, path: str, version: int) -> Node:
        node = self._tree.node(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"{path} has version {node.version}, expected {version}: read it again")
        return node

    def _create(self, operation: Create) -> str:
        parent_path = parent_of(operation.path)
        parent = self._tree.node(parent_path)
        if parent.ephemeral_owner:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and cannot hold {operation.path}")
        path = operation.path + (f"{parent.children_created:010d}" if operation.sequential else "")
        if path in self._tree.nodes:
            raise NodeExistsError(f"{path} already exists")
        self._tree.nodes[path] = Node(
            data=operation.data,
            created_id=self._id,
            modified_id=self._id,
            created_ms=self._now_ms,
            modified_ms=self._now_ms,
            ephemeral_owner=self._owner if operation.ephemeral else 0,
        )
        self._undo.append(lambda: self._tree.nodes.__delitem__(path))
        self._change_children(parent_path, parent, add=path, ephemeral=operation.ephemeral)
        self._note(path, EventType.CREATED, parent_path)
        return path

    def _write(self, operation: Write) -> NodeStat:
        node = self._expect(operation.path, operation.version)
        before = (node.data, node.version, node.modified_id, node.modified_ms)

        def restore() -> None:
            node.data, node.version, node.modified_id, node.modified_ms = before

        self._undo.append(restore)
        node.data, node.version = operation.data, node.version + 1
        node.modified_id, node.modified_ms = self._id, self._now_ms
        self._note(operation.path, EventType.CHANGED, None)
        return node.stat()

    def _delete(self, operation: Delete) -> None:
        path = operation.path
        node = self._expect(path, operation.version)
        if node.children:
            raise NotEmptyError(f"{path} has {len(node.children)} children and cannot be deleted before them")
        del self._tree.nodes[path]
        self._undo.append(lambda: self._tree.nodes.__setitem__(path, node))
        parent_path = parent_of(path)
        self._change_children(
            parent_path, self._tree.nodes[parent_path], remove=path, ephemeral=node.ephemeral_owner != 0
        )
        self._note(path, EventType.DELETED, parent_path)

    def _change_children(
        self, path: str, node: Node, *, add: str | None = None, remove: str | None = None, ephemeral: bool
    ) -> None:
        name = (add or remove or "").rsplit("/", 1)[1]
        ephemerals = node.ephemeral_children

        def restore() -> None:
            (node.children.discard if add else node.children.add)(name)
            node.children_version -= 1
            node.ephemeral_children = ephemerals

        self._undo.append(restore)
        (node.children.add if add else node.children.discard)(name)
        node.children_version += 1
        if ephemeral:
            node.ephemeral_children += 1 if add else -1
        self.touched.add(path)

    def _note(self, path: str, event: EventType, parent_path: str | None) -> None:
        self.touched.add(path)
        self.events.append(WatchEvent(event, path))
        if parent_path is not None:
            self.events.append(WatchEvent(EventType.CHILDREN, parent_path))

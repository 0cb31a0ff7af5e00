"""ACLs in the metadata store, and their copy in memory.

The store has the same nodes as Kafka 3.9. Kafka's classes are ``AclAuthorizer``, ``ZkAclStore`` and ``KafkaZkClient``.
A pattern has one node with all of its entries. A change reads the node, and writes it with the version that was read.
If another broker was faster, the change is made again on what that broker wrote. Each change has a notice, by which the
other brokers read the node.

Invariants

- ``index`` has only entries that were read from the store or written to it.
- A change and its notice are one transaction.
- Changes and reloads run in the administration thread. Any thread may read ``index``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from millrace.acls import AclBinding, AclBindingFilter, PatternType, ResourcePattern, ResourceType
from millrace.config.broker import BrokerConfig
from millrace.coordination import (
    BadVersionError,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Write,
    ensure_path,
    paths,
)
from millrace.coordination.acl_nodes import AclNode
from millrace.coordination.outcomes import settle
from millrace.errors import MillraceError, StorageError
from millrace_broker.security.acl_index import AclIndex, Entries

_logger = logging.getLogger(__name__)

_TYPES: Final = tuple(each for each in ResourceType if each not in (ResourceType.UNKNOWN, ResourceType.ANY))
_NONE: Final[Entries] = frozenset()


class AclStore:
    """ACLs of a cluster."""

    def __init__(
        self, coordination: Coordination, notices: Callable[[ResourcePattern], list[Operation]] = lambda pattern: []
    ) -> None:
        """Read all ACLs. It blocks. ``notices`` returns the writes that notify other brokers of a pattern's change."""
        self._coordination: Final = coordination
        self._notices: Final = notices
        self.index = AclIndex()
        """The ACLs in the form that decisions use. Each change replaces the index."""
        for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
            for resource_type in _TYPES:
                ensure_path(coordination, paths.acl_type_path(pattern_type, resource_type))
        for root in (paths.ACL_CHANGES, paths.EXTENDED_ACL_CHANGES):
            ensure_path(coordination, root)
        self.reload_all()

    @classmethod
    def of(
        cls,
        config: BrokerConfig,
        coordination: Coordination,
        notices: Callable[[ResourcePattern], list[Operation]],
    ) -> AclStore | None:
        """Return the store of a broker; None if it has no authorizer."""
        return cls(coordination, notices) if config.authorizer_class_name else None

    def reload_all(self) -> None:
        """Read the ACLs of all patterns, because notices may have been missed."""
        patterns = [
            ResourcePattern(resource_type, name, pattern_type)
            for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
            for resource_type in _TYPES
            for name in self._coordination.children(paths.acl_type_path(pattern_type, resource_type))
        ]
        found = self._coordination.get_many([paths.acl_path(each) for each in patterns])
        changes: dict[ResourcePattern, Entries] = dict.fromkeys(self.index.acls, _NONE)
        for pattern, node in zip(patterns, found, strict=True):
            if node is not None:
                changes[pattern] = self._decoded(pattern, node[0])
        self.index = self.index.updated(changes)

    def reload(self, pattern: ResourcePattern) -> None:
        """Read the ACLs of a pattern again."""
        self.index = self.index.updated({pattern: self._read(pattern)[0]})

    def create(self, bindings: Sequence[AclBinding]) -> list[MillraceError | None]:
        """Add ACLs, and return the error of each. An ACL that exists already is no error."""
        outcomes: dict[AclBinding, MillraceError | None] = dict.fromkeys(bindings)
        wanted: dict[ResourcePattern, set[AclBinding]] = {}
        for binding in outcomes:
            try:
                binding.check()
            except MillraceError as error:
                outcomes[binding] = error
            else:
                wanted.setdefault(binding.pattern, set()).add(binding)
        for pattern, added in wanted.items():
            new = frozenset(each.entry for each in added)
            outcomes |= dict.fromkeys(added, self._change(pattern, new.union))
        return [outcomes[each] for each in bindings]

    def delete(self, filters: Sequence[AclBindingFilter]) -> list[list[AclBinding] | MillraceError]:
        """Delete the ACLs that match filters. Return those of each filter, or its error."""
        outcomes: list[list[AclBinding] | MillraceError] = []
        for wanted in filters:
            deleted: list[AclBinding] = []
            failure: MillraceError | None = None
            for pattern in {each.pattern for each in self.index.find(wanted)}:
                gone: set[AclBinding] = set()

                def keep(
                    present: Entries,
                    pattern: ResourcePattern = pattern,
                    wanted: AclBindingFilter = wanted,
                    gone: set[AclBinding] = gone,
                ) -> Entries:
                    gone.clear()
                    gone.update(binding for each in present if wanted.matches(binding := AclBinding(pattern, each)))
                    return present - {each.entry for each in gone}

                failure = self._change(pattern, keep) or failure
                deleted += sorted(gone)
            outcomes.append(failure or sorted(deleted))
        return outcomes

    def _change(self, pattern: ResourcePattern, change: Callable[[Entries], Entries]) -> MillraceError | None:
        """Change the entries of a pattern, again if another broker was faster. Return the error."""
        path = paths.acl_path(pattern)
        while True:
            try:
                present, version = self._read(pattern)
                after = change(present)
                if after != present:
                    settle(self._coordination, [_written(path, after, version), *self._notices(pattern)])
            except (BadVersionError, NodeExistsError, NoNodeError):
                continue
            except MillraceError as error:
                if isinstance(error, CoordinationError):
                    raise
                return error
            self.index = self.index.updated({pattern: after})
            return None

    def _read(self, pattern: ResourcePattern) -> tuple[Entries, int | None]:
        """Return the entries of a pattern, and the version of its node; None if it has none."""
        try:
            data, stat = self._coordination.get(paths.acl_path(pattern))
        except NoNodeError:
            return _NONE, None
        return self._decoded(pattern, data), stat.version

    def _decoded(self, pattern: ResourcePattern, data: bytes) -> Entries:
        """Decode a node. Raises ``StorageError``, because an ACL that is left out could be a denial."""
        try:
            return AclNode.decode(data).entries
        except StorageError as error:
            raise StorageError(f"{paths.acl_path(pattern)}: {error.message}. Correct the node, or delete it") from error


def _written(path: str, entries: Entries, version: int | None) -> Operation:
    if version is None:
        return Create(path, AclNode(entries).encode())
    return Write(path, AclNode(entries).encode(), version) if entries else Delete(path, version)

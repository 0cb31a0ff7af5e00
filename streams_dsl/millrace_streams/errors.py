"""The errors of the DSL: what can be wrong with a topology, its functions or its state.

They are part of ``millrace.errors``' hierarchy, so that the command line and the jobs treat them as any other.
"""

from __future__ import annotations

from millrace.errors import MillraceError


class TopologyError(MillraceError):
    """A topology is wrong in itself; the message names the node and shows how to mend it."""

    code = 1100


class UnknownColumnError(TopologyError):
    """A node names a column that its input does not have; the message lists those it has."""

    code = 1101


class UnsupportedTopologyError(TopologyError):
    """A runner cannot do this yet; the message names the node, the reason, and what does the job meanwhile."""

    code = 1102


class UserFunctionError(MillraceError):
    """A function of the user's raised, or gave what it may not give; names the node and the record's place.

    ``node``, ``topic``, ``partition`` and ``offset`` say the same as data; None where no single record is to blame.
    """

    code = 1103

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Fail with a message that names all of these."""
        super().__init__(message)
        self.node = node
        self.topic = topic
        self.partition = partition
        self.offset = offset


class IncompatibleStateError(MillraceError):
    """Stored state does not belong to this topology: its columns or its version are others."""

    code = 1104

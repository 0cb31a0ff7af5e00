"""Errors of the DSL, about a topology, its functions or its state.

They belong to the hierarchy of ``millrace.errors``, so the command line and the jobs handle them like any other.
"""

from __future__ import annotations

from millrace.errors import MillraceError


class TopologyError(MillraceError):
    """An invalid topology. The message names the node and the remedy."""

    code = 1100


class UnknownColumnError(TopologyError):
    """Use of a column that the node's input lacks.

    The message lists the columns that exist.
    """

    code = 1101


class UnsupportedTopologyError(TopologyError):
    """A topology that a runner does not support yet. The message names the node, the reason and an alternative."""

    code = 1102


class UserFunctionError(MillraceError):
    """Error in a user's function, or a wrong value from it.

    The message names the node and the record's position. ``node``, ``topic``, ``partition`` and ``offset`` have the
    same as data. They are None if the error does not belong to one record. ``released`` identifies a result that failed
    and that a record had only released: the record's root mark, and the result's number (``steps.flow.RELEASED``).
    ``alike`` are the errors of other results of that record, on which the function fails independently of this one.
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
        released: tuple[int, int] | None = None,
    ) -> None:
        """Create the error with a message that names all of these."""
        super().__init__(message)
        self.node = node
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.released = released
        self.alike: list[UserFunctionError] = []


class IncompatibleStateError(MillraceError):
    """Stored state that belongs to another topology.

    The columns or the version of the state differ from those of the topology.
    """

    code = 1104

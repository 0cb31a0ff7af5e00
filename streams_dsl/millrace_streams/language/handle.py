"""Common base of stream, table and group handles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Alias, Expression, col, expression_of
from millrace_streams.functions import Batchwise, PythonFunction, python_function
from millrace_streams.graph import JoinColumns, Node
from millrace_streams.graph.topology_builder import check_name
from millrace_streams.serdes import RowSerde, Serde, scalar_serde, serde_of

if TYPE_CHECKING:
    from millrace_streams.graph.topology_builder import TopologyBuilder

NodeT = TypeVar("NodeT", bound=Node)
Function = Callable[..., Any]
Predicate = Expression | Function | Batchwise
KeyOf = str | Expression | Function
JoinedBy = Function | Expression | None
Columns = tuple[tuple[str, Expression], ...]


class Handle:
    """Handle of a node in a builder's topology."""

    _instead = ""
    """Remedy in the error for a method that only other kinds of handles have."""

    def __init__(self, builder: TopologyBuilder, node: Node) -> None:
        """Create the handle of ``node``."""
        self._builder = builder
        self._node = node

    @property
    def name(self) -> str:
        """Name of the node."""
        return self._node.name

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise ``AttributeError`` with the remedy."""
            raise AttributeError(f"{type(self).__name__} has no {name}(): {self._instead}")

    def _then(self, kind: type[NodeT], name: str | None, /, *others: Handle, **fields: Any) -> NodeT:
        for other in others:
            if other._builder is not self._builder:
                raise TopologyError(
                    f"{name or kind.prefix}: {self.name} and {other.name} belong to two builders: build both with one "
                    "StreamsBuilder"
                )
        parents = (self._node.name, *(other._node.name for other in others))
        return self._builder.add(kind, name, parents, **fields)

    def _where(self, what: str, name: str | None) -> str:
        check_name(name)
        return name or f"{what} after {self._node.name}"

    def _pairs(self, what: str, columns: Sequence[str | Alias], expressions: dict[str, Any]) -> Columns:
        where = f"{what} after {self._node.name}"
        pairs = [_pair(column, where) for column in columns]
        pairs += [(column, expression_of(value)) for column, value in expressions.items()]
        names = [column for column, _ in pairs]
        if not names:
            raise TopologyError(f"{where}: name at least one column")
        if len(names) != len(set(names)):
            raise TopologyError(f"{where}: a column is named twice in {', '.join(names)}")
        return tuple(pairs)

    def _function(
        self, what: str, function: Function | Batchwise, name: str | None, *, whole_frames: bool = False
    ) -> PythonFunction:
        return python_function(function, self._where(what, name), whole_frames=whole_frames)

    def _predicate(self, what: str, predicate: Predicate, name: str | None) -> Expression | PythonFunction:
        if isinstance(predicate, Expression):
            return predicate
        return self._function(what, predicate, name, whole_frames=True)

    def _key_of(self, what: str, given: KeyOf, name: str | None) -> Expression | PythonFunction:
        """Convert the key selector of another table: a column, an expression of the value, or a function."""
        if isinstance(given, str):
            return col(given)
        return given if isinstance(given, Expression) else self._function(what, given, name)

    def _joined(
        self, what: str, joiner: JoinedBy, value: Any, keep: bool, columns: dict[str, Any], name: str | None
    ) -> dict[str, Any]:
        """Return the fields of a join that define its values."""
        where = self._where(what, name)
        by_columns = joiner is None or isinstance(joiner, Expression)
        if by_columns:
            bare = value if joiner is None else joiner
            if bare is not None and not (isinstance(bare, Expression) and (joiner is None or value is None)):
                raise TopologyError(
                    f"{where}: value={value!r} is only for a joiner that is a function: use cast() instead"
                )
            columns = columns if bare is None else {"value": bare, **columns}
        if by_columns == (not columns and not keep):
            raise TopologyError(
                f"{where}: give joiner(left, right), or columns such as region=right('region'), and not both"
            )
        if isinstance(joiner, Expression) or joiner is None:
            pairs = tuple((column, expression_of(expression)) for column, expression in columns.items())
            return {"joiner": JoinColumns(columns=pairs, keep=keep), "serde": None}
        return {
            "joiner": python_function(joiner, where, takes=("left", "right")),
            "serde": self._serde(what, value, name),
        }

    def _serde(self, what: str, given: Any, name: str | None = None) -> Serde | RowSerde | None:
        return None if given is None else serde_of(given, self._where(what, name))

    def _key_serde(self, what: str, given: Any, name: str | None = None) -> Serde | None:
        return None if given is None else scalar_serde(given, self._where(what, name))


def _pair(column: str | Alias, where: str) -> tuple[str, Expression]:
    if isinstance(column, str):
        return column, col(column)
    if isinstance(column, Alias):
        return column.name, column.expression
    raise TopologyError(f"{where}: {column!r} has no name: write name=expression or expression.alias('name')")

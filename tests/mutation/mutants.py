"""Mutants, which are small changes to a module's functions.

A test should notice each of them. Only the bodies of functions are changed, because a mutant replaces the code of live
functions. The process that is forked for each mutant has all modules and tests loaded already. Texts, log calls,
assertions (also ``zip(strict=True)``), the messages of errors, ``__repr__`` and ``__str__`` are not changed.
"""

from __future__ import annotations

import ast
import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

_COMPARED: dict[type[ast.cmpop], tuple[tuple[str, type[ast.cmpop]], ...]] = {
    ast.Lt: (("boundary", ast.LtE), ("comparison", ast.GtE)),
    ast.LtE: (("boundary", ast.Lt), ("comparison", ast.Gt)),
    ast.Gt: (("boundary", ast.GtE), ("comparison", ast.LtE)),
    ast.GtE: (("boundary", ast.Gt), ("comparison", ast.Lt)),
    ast.Eq: (("comparison", ast.NotEq),),
    ast.NotEq: (("comparison", ast.Eq),),
    ast.Is: (("comparison", ast.IsNot),),
    ast.IsNot: (("comparison", ast.Is),),
    ast.In: (("comparison", ast.NotIn),),
    ast.NotIn: (("comparison", ast.In),),
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.Pow: ast.Mult,
}
_SWAPPED = {
    one: other
    for pair in (("min", "max"), ("any", "all"), ("bisect_left", "bisect_right"), ("startswith", "endswith"))
    for one, other in (pair, pair[::-1])
}
_UNTOUCHED = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ClassDef)
Function = tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]
"""With its qualified name."""
_LOGGERS = ("_LOG", "_log", "_logger")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change. ``number`` counts the changes of the module. A judging test must cover one of ``lines``."""

    path: str
    function: str
    operator: str
    before: str
    after: str
    number: int
    lines: tuple[int, int]
    statement: int

    @property
    def name(self) -> str:
        """Return the change without line numbers, so that its name stays the same after other changes."""
        return f"{self.path} {self.function}: {self.operator}: {self.before} -> {self.after}"


@dataclass(slots=True)
class _Change:
    function: ast.FunctionDef | ast.AsyncFunctionDef
    qualified: str
    statement: ast.stmt
    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    operator: str
    new: ast.AST

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def find_mutants(root: Path, path: str) -> list[Mutant]:
    """Find all mutants of a module, whose ``path`` is relative to ``root``."""
    tree = ast.parse((root / path).read_text())
    found = []
    for number, change in enumerate(_changes(tree)):
        before, after = (" ".join(ast.unparse(each).split()) for each in (change.node, change.new))
        lines = (change.node.lineno, change.node.end_lineno or change.node.lineno)  # type: ignore[attr-defined]
        found.append(
            Mutant(
                path=path,
                function=change.qualified,
                operator=change.operator,
                before=before,
                after=after,
                number=number,
                lines=lines,
                statement=change.statement.lineno,
            )
        )
    return found


def names_of(mutants: Iterable[Mutant]) -> list[str]:
    """Return the names of mutants. Repeated names get a number."""
    seen: Counter[str] = Counter()
    names = []
    for mutant in mutants:
        seen[mutant.name] += 1
        names.append(mutant.name + (f" ({seen[mutant.name]})" if seen[mutant.name] > 1 else ""))
    return names


def mutated_code(root: Path, mutant: Mutant) -> tuple[CodeType, CodeType]:
    """Compile a mutant, and return the code of its function before and after the change."""
    file = str(root / mutant.path)
    tree = ast.parse(Path(file).read_text())
    sound = compile(tree, file, "exec", dont_inherit=True)
    change = next(change for number, change in enumerate(_changes(tree)) if number == mutant.number)
    change.put(ast.fix_missing_locations(ast.copy_location(change.new, change.node)))
    changed = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
    decorated = [change.function, *change.function.decorator_list]
    line = min(node.lineno for node in decorated)
    return _code_in(sound, change.qualified, line), _code_in(changed, change.qualified, line)


def live_functions(paths: Iterable[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return the functions of loaded modules, by file, qualified name and first line."""
    files = set(paths)
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    gc.unfreeze()  # frozen objects are not listed
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in files:
            found.setdefault(_key(each.__code__), []).append(each)
    return found


def install(root: Path, mutant: Mutant, functions: dict[tuple[str, str, int], list[FunctionType]]) -> None:
    """Give the mutant's live functions the changed code."""
    sound, changed = mutated_code(root, mutant)
    changing = functions[_key(sound)]
    for function in changing:
        if function.__code__.co_freevars != changed.co_freevars:
            raise ValueError(f"{mutant.name}: it changes the variables of the function's closure")
        function.__code__ = changed


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _code_in(code: CodeType, qualified: str, line: int) -> CodeType:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if (each.co_qualname, each.co_firstlineno) == (qualified, line):
                return each
            if qualified.startswith(f"{each.co_qualname}."):
                return _code_in(each, qualified, line)
    raise LookupError(f"{qualified}, line {line}, is not in {code.co_filename}")


def _changes(tree: ast.AST, prefix: str = "") -> Iterator[_Change]:
    """Return the changes of all functions at the top of a module and of its classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _changes(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in ("__repr__", "__str__"):
            for statement in node.body:
                place = node.body.index(statement)
                yield from _visit(statement, (node, prefix + node.name), statement, node, "body", place)
        elif isinstance(node, ast.If | ast.Try):
            yield from _changes(node, prefix)


def _visit(
    node: ast.AST, function: Function, statement: ast.stmt, parent: ast.AST, field: str, index: int | None
) -> Iterator[_Change]:
    if isinstance(node, _UNTOUCHED) or _is_text_or_log(node) or _is_assertion(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    variants = list(_variants(node))
    if field in ("test", "ifs") and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        variants.append(("condition", ast.UnaryOp(ast.Not(), node)))
    for operator, new in variants:
        yield _Change(*function, statement, parent, field, index, node, operator, new)
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and isinstance(
            node, ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        ):
            continue
        if isinstance(value, ast.AST):
            yield from _visit(value, function, statement, node, name, None)
        elif isinstance(value, list):
            for place, each in enumerate(value):
                if isinstance(each, ast.AST):
                    yield from _visit(each, function, statement, node, name, place)


def _is_text_or_log(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    called = node.value.func if isinstance(node.value, ast.Call) else None
    is_log = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in _LOGGERS
    return is_log or isinstance(node.value, ast.Constant)


def _is_assertion(node: ast.AST) -> bool:
    """Tell whether it is ``strict=True``, by which ``zip`` asserts equal lengths."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare():
            yield from _other_comparisons(node)
        case ast.BoolOp():
            yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield "unary", node.operand
        case ast.BinOp() if type(node.op) in _CALCULATED and not (_is_text(node.left) or _is_text(node.right)):
            yield "arithmetic", ast.BinOp(node.left, _CALCULATED[type(node.op)](), node.right)
        case ast.Constant():
            yield from _other_constants(node.value)
        case ast.Slice():
            if node.lower is not None:
                yield "slice", ast.Slice(None, node.upper, node.step)
            if node.upper is not None:
                yield "slice", ast.Slice(node.lower, None, node.step)
        case ast.Call():
            yield from _other_calls(node)
        case ast.stmt():
            yield from _other_statements(node)


def _other_comparisons(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for place, operator in enumerate(node.ops):
        for kind, other in _COMPARED[type(operator)]:
            yield kind, ast.Compare(node.left, [*node.ops[:place], other(), *node.ops[place + 1 :]], node.comparators)


def _other_constants(value: object) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
        yield "constant", ast.Constant(value - 1)


def _other_calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    match node.func:
        case ast.Name(id=name) if name in _SWAPPED:
            yield "swap", ast.Call(ast.Name(_SWAPPED[name], ast.Load()), node.args, node.keywords)
        case ast.Attribute(value=value, attr=name) if name in _SWAPPED:
            yield "swap", ast.Call(ast.Attribute(value, _SWAPPED[name], ast.Load()), node.args, node.keywords)


def _other_statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Return(value=ast.expr() as value) if not _is_nothing(value):
            yield "return", ast.Return(ast.Constant(None))
        case ast.AugAssign():
            if type(node.op) in _CALCULATED:
                yield "arithmetic", ast.AugAssign(node.target, _CALCULATED[type(node.op)](), node.value)
            yield "delete", ast.Pass()
        case (
            ast.Return(value=None) | ast.Continue() | ast.Break() | ast.Raise() | ast.Delete()
            | ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
        ):  # fmt: skip
            yield "delete", ast.Pass()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_nothing(node: ast.expr) -> bool:
    """Tell whether None in its place would be the same or an equivalent."""
    return isinstance(node, ast.Constant) and node.value in (None, False)

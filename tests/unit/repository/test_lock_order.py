"""Tests of the lock order in the broker's ARCHITECTURE.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BROKER = ROOT / "broker" / "millrace_broker"
PAGE = ROOT / "broker" / "ARCHITECTURE.md"
KINDS = frozenset(("Lock", "RLock", "Condition", "Semaphore", "Turn"))


def locks() -> Iterator[str]:
    """Yield each attribute of a class of the broker that holds a lock, as ``Class.attribute``."""
    for path in sorted(BROKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in KINDS:
                for name in _locks_of(node):
                    yield f"{node.name}.{name}"


def _locks_of(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        value = getattr(each, "value", None)
        if isinstance(each, ast.Assign | ast.AnnAssign) and value is not None and _makes_a_lock(value):
            assert isinstance(target, ast.Name | ast.Attribute)
            yield target.id if isinstance(target, ast.Name) else target.attr


def _makes_a_lock(value: ast.expr) -> bool:
    """Return whether an expression calls a lock's class, or something else that will call it."""
    if not isinstance(value, ast.Call):
        return False
    classes = [value.func, *value.args, *(each.value for each in value.keywords)]
    return any((getattr(each, "attr", None) or getattr(each, "id", None)) in KINDS for each in classes)


def test_the_broker_has_locks() -> None:
    assert {"ReplicaManager._deciding", "Waiters.locks", "GroupEntry._lock", "SharePartition._turn"} <= set(locks())


@pytest.mark.parametrize("lock", sorted(set(locks())))
def test_the_lock_order_names_each_lock_of_the_broker(lock: str) -> None:
    section = PAGE.read_text("utf-8").split("## Order of locks", 1)[1].split("\n## ", 1)[0]
    assert f"`{lock}" in section, f"add {lock} to the lock order in broker/ARCHITECTURE.md"

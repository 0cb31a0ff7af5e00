"""Tests of the waits in tests.

Tests wait by ``tests/integration/waiting.py``, without sleeps or fixed timeouts.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = ("tests/simulation/", "tests/mutation/", "tests/releases/", "tests/compat/")
"""Virtual time, and programs that are no tests. ``compat`` runs other makers' suites, which show no progress."""
ALLOWED = {
    "tests/integration/waiting.py": "waits for all others",
    "tests/unit/broker/runtime/test_spinning_loop.py": "the event loop's own timers are what it tests",
    "tests/unit/clients/transport/test_frame_transport.py": "a server sends pieces one after the other",
    "tests/unit/test_spinning.py": "a clock of its own",
    "tests/integration/sink_attempts.py": "runs in workers of Spark, which cannot import the helper",
}
TIMED = {"wait", "join", "result", "communicate", "awaitTermination", "exception", "wait_for"}
"""Methods and functions whose timeout, in seconds, is the last positional argument or ``timeout``."""
SECONDS_MIN = 1.0
"""Shorter timeouts are no deadlines. Tests use them for events that must not happen."""


def timed_calls(source: str) -> Iterator[tuple[int, str]]:
    """Find the lines that sleep, wait for a literal time, or expect an operation to take less time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and (
            any(is_deadline(each) for each in (node.left, *node.comparators))
            or (is_elapsed(node.left) and isinstance(node.ops[0], ast.Lt | ast.LtE))
        ):
            yield node.lineno, ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in {"time.sleep", "asyncio.sleep"}:
            if not is_number(node.args[0], 0, 0):
                yield node.lineno, ast.unparse(node)
            continue
        values = [each.value for each in node.keywords if each.arg in {"timeout", "timeout_s"}]
        if name == "subprocess.run" and values:
            yield node.lineno, ast.unparse(node)
            continue
        if name.rpartition(".")[2] in TIMED and "." in name:
            values += node.args[-1:]
        if any(is_number(each, SECONDS_MIN, float("inf")) for each in values):
            yield node.lineno, ast.unparse(node)


def is_number(node: ast.expr, least: float, most: float) -> bool:
    """Tell whether it is a literal number within these bounds."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and least <= node.value <= most


def is_deadline(node: ast.expr) -> bool:
    """Tell whether it is a variable that loops compare with the clock."""
    return isinstance(node, ast.Name) and node.id == "deadline"


def is_elapsed(node: ast.expr) -> bool:
    """Tell whether it computes the time since a moment, as in ``time.monotonic() - started``."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and ast.unparse(node.left) in {"time.monotonic()", "time.perf_counter()", "time.time()"}
    )


def test_tests_neither_sleep_nor_wait_for_a_fixed_time() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "tests/*.py"], cwd=ROOT, capture_output=True, check=True).stdout
    names = [name for name in listed.decode().split("\0") if name and not name.startswith(ELSEWHERE)]
    found = [
        f"{name}:{line}: {call}"
        for name in names
        if name not in ALLOWED
        for line, call in timed_calls((ROOT / name).read_text("utf-8"))
    ]
    assert found == [], "use eventually, Stall, exit_code, run_to_end or STALL_S of tests/integration/waiting.py"


@pytest.mark.parametrize(
    "call",
    [
        "time.sleep(0.5)",
        "time.sleep(pause_s)",
        "await asyncio.sleep(1)",
        "future.result(10)",
        "process.wait(timeout=30)",
        "asyncio.wait_for(work(), 60)",
        "threading.Event().wait(2)",
        "subprocess.run(command, timeout=STALL_S)",
        "time.monotonic() < deadline",
        "assert time.monotonic() - started < 10",
        "stub.Fetch(request, timeout=30)",
        "await peers.call(1, 'Fetch', request, timeout_s=10)",
    ],
)
def test_a_fixed_time_is_found(call: str) -> None:
    assert list(timed_calls(f"async def work():\n    {call}"))


@pytest.mark.parametrize(
    "call",
    [
        "await asyncio.sleep(0)",
        "future.result(STALL_S)",
        "'x'.join(names)",
        "stop.wait(0.05)",
        "process.wait()",
        "assert time.monotonic() - started >= 1",
        "stub.Fetch(request, timeout=STALL_S)",
        "producer.close(timeout=0.1)",
    ],
)
def test_other_calls_are_not_found(call: str) -> None:
    assert not list(timed_calls(f"async def work():\n    {call}"))

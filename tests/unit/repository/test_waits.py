"""Tests of the waits in tests.

Tests wait by ``tests/integration/waiting.py``, without sleeps or fixed timeouts.
"""

from __future__ import annotations

import ast
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...integration.waiting import STALL_S

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = ("tests/simulation/", "tests/mutation/", "tests/releases/", "tests/compat/")
"""Virtual time, and programs that are no tests. ``compat`` runs other makers' suites, which show no progress."""
ALLOWED = {
    "tests/integration/waiting.py": "waits for all others",
    "tests/integration/test_grpc_connections.py": "gRPC closes such connections by itself after two minutes",
    "tests/unit/broker/runtime/test_spinning_loop.py": "the event loop's own timers are what it tests",
    "tests/unit/clients/transport/test_frame_transport.py": "a server sends pieces one after the other",
    "tests/unit/test_spinning.py": "a clock of its own",
    "tests/integration/sink_attempts.py": "runs in workers of Spark, which cannot import the helper",
}
TIMED = {
    "wait",
    "join",
    "result",
    "communicate",
    "awaitTermination",
    "exception",
    "wait_for",
    "flush",
    "settimeout",
    "timeout",
    "init_transactions",
    "commit_transaction",
    "abort_transaction",
}
"""Methods and functions whose timeout, in seconds, is the last positional argument or ``timeout``."""
NAMED = {"timeout", "timeout_s", "request_timeout", "operation_timeout"}
"""Parameters that are timeouts in seconds."""
UNTIMED = {"log.flush"}
"""Functions whose argument is an offset."""
WAITS = {"eventually", "eventually_async"}
SECONDS_MIN = 1.0
"""Shorter timeouts are no deadlines. Tests use them for events that must not happen."""


def timed_calls(source: str) -> Iterator[tuple[int, str]]:
    """Find the lines that sleep, wait for a literal time, or expect an operation to take less time."""
    tree = ast.parse(source)
    named = dict(constants(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            for each, default in defaults(node):
                if each.arg in NAMED and is_time(default, named):
                    yield each.lineno, f"{each.arg}={ast.unparse(default)}"
        elif (isinstance(node, ast.Compare) and expects_time(node, named)) or (
            isinstance(node, ast.Call) and takes_time(node, named)
        ):
            yield node.lineno, ast.unparse(node)


def expects_time(node: ast.Compare, named: dict[str, ast.expr]) -> bool:
    """Tell whether a comparison is with a deadline or with the time of an operation."""
    return (
        any(is_deadline(each) for each in (node.left, *node.comparators))
        or (is_elapsed(node.left) and isinstance(node.ops[0], ast.Lt | ast.LtE))
        or (is_used(node.left) and is_number(value_of(node.comparators[0], named), 0, float("inf")))
    )


def takes_time(node: ast.Call, named: dict[str, ast.expr]) -> bool:
    """Tell whether a call sleeps, or waits for a literal time."""
    name = ast.unparse(node.func)
    if name in {"time.sleep", "asyncio.sleep"}:
        return not is_number(node.args[0], 0, 0)
    values = [each.value for each in node.keywords if each.arg in NAMED]
    if name == "subprocess.run":
        return bool(values)
    if name.rpartition(".")[2] in TIMED and "." in name and name not in UNTIMED:
        values += node.args[-1:]
    if name == "socket.create_connection":
        values += node.args[1:2]
    most = math.nextafter(STALL_S, 0) if name == "pytest.mark.timeout" else float("inf")
    return any(is_time(each, named, most) for each in values) or (name in WAITS and describes_by_number(node, named))


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Find the names of a module that are literal numbers."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None and is_number(value, 0, float("inf")):
            yield target.id, value


def defaults(parameters: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    """Find the parameters with a default, and the default of each."""
    positional = [*parameters.posonlyargs, *parameters.args]
    yield from zip(positional[len(positional) - len(parameters.defaults) :], parameters.defaults, strict=True)
    for each, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        if default is not None:
            yield each, default


def is_time(node: ast.expr, named: dict[str, ast.expr], most: float = float("inf")) -> bool:
    """Tell whether it is a deadline as a literal number, or a shorter one than ``STALL_S`` with a name."""
    if ast.unparse(node) in named:
        most = min(most, math.nextafter(STALL_S, 0))
    return is_number(value_of(node, named), SECONDS_MIN, most)


def value_of(node: ast.expr, named: dict[str, ast.expr]) -> ast.expr:
    """Return the value of a name of this module, if it is a number, or else the expression."""
    return named.get(ast.unparse(node), node)


def describes_by_number(node: ast.Call, named: dict[str, ast.expr]) -> bool:
    """Tell whether a wait has a number in the place of its description."""
    given = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "what")]
    return any(is_number(value_of(each, named), 0, float("inf")) for each in given)


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


def is_used(node: ast.expr) -> bool:
    """Tell whether it computes the CPU time since a moment."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and ast.unparse(node.left) in {"time.process_time()", "time.thread_time()"}
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
        "async with asyncio.timeout(30): pass",
        "sock.settimeout(20)",
        "socket.create_connection(address, 10)",
        "producer.flush(30)",
        "producer.commit_transaction(60)",
        "admin.create_topics(topics, request_timeout=30)",
        "eventually(lambda: done, 50.0)",
        "eventually(lambda: done, what=50.0)",
        "future.result(PATIENCE_S)",
        "eventually(lambda: done, PATIENCE_S)",
        "def connect(address, timeout_s=60): pass",
        "assert time.process_time() - started < 20",
        "pytest.mark.timeout(120)",
    ],
)
def test_a_fixed_time_is_found(call: str) -> None:
    assert list(timed_calls(f"PATIENCE_S = 50.0\nasync def work():\n    {call}"))


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
        "sock.settimeout(0.1)",
        "future.result(AN_HOUR_S)",
        "eventually(lambda: done, 'the end')",
        "log.flush(5)",
        "assert time.process_time() - started < 3 * baseline_s",
        "pytest.mark.timeout(7200)",
    ],
)
def test_other_calls_are_not_found(call: str) -> None:
    assert not list(timed_calls(f"AN_HOUR_S = 3600\nasync def work():\n    {call}"))

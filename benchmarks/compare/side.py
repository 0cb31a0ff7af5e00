"""Process that measures our side of one row of one commit.

``python -P side.py ROW RECORDS WORKSPACE`` uses the harness and the suite of the commit, whose folders are in
``PYTHONPATH``. It has the protocol of a worker (``benchmarks.worker``). This file is always that of the new commit, so
it uses nothing of the measured commit but ``Benchmark.ours``, ``Context`` and ``Workspace``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import signal
import sys
from pathlib import Path
from typing import Any

_MARK = "RESULT "


def main() -> None:
    """Open the side, and measure once for each line of the input."""
    row, records, root = sys.argv[1:]
    # The same CpuUse measures both commits, whatever their own module does.
    machine = _load(Path(__file__).parents[1] / "machine.py")
    harness: Any = importlib.import_module("benchmarks.harness")
    workspace: Any = importlib.import_module("benchmarks.workspace")
    benchmark: Any = importlib.import_module(f"benchmarks.suite.{row}").BENCHMARK
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and workers are stopped on the way out
    with (
        workspace.Workspace(Path(root)) as opened,
        harness.Context(opened, int(records)) as context,
        benchmark.ours.open(context) as measure,
    ):
        measure()  # untimed, because the first run may still load code that later runs find loaded
        _tell({})
        for _ in sys.stdin:
            with machine.CpuUse() as use:
                sample = measure()
            _tell(
                {
                    "figure": sample.figure,
                    "answer": sample.answer,
                    "cpu_seconds": use.own_seconds,
                    "other_cores": use.other_cores,
                }
            )


def _tell(result: dict[str, Any]) -> None:
    print(_MARK + json.dumps(result), flush=True)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("compare_machine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

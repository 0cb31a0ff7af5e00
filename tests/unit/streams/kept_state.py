"""State that an older version of millrace wrote.

The state has each kind of store, with its topology's manifest.

.venv/bin/python -m tests.unit.streams.kept_state      writes the state again with today's code

Do this for a new version of chunks, which makes older checkpoints unreadable. Do not do it for a test that fails.
"""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace_streams import StreamsBuilder, TestRecord, Topology
from millrace_streams.checkpoints.manifest import Manifest
from millrace_streams.compiler import stages_of
from millrace_streams.state.pages import Page
from millrace_streams.state.variables import MemoryVariables

from .test_state_packed import (
    TYPES,
    InPages,
    joins,
    keeping_rows,
    means,
    named_folds,
    processors,
    rows,
    shared_store,
    windows,
)

DIRECTORY = Path(__file__).parent / "kept_state"
BATCHES, RECORDS = 6, 8
KEPT_AFTER = 4
"""Number of batches that went into the stored state."""
TOPOLOGIES: dict[str, Callable[[Any, Any], None]] = {
    build.__name__: build
    for build in (processors, keeping_rows, shared_store, joins, windows, named_folds, means, rows)
}


def topology(name: str) -> Topology:
    """Build a topology that keeps state."""
    builder = StreamsBuilder()
    TOPOLOGIES[name](builder.stream("x", **TYPES), builder.stream("y", **TYPES))
    return builder.build()


def script() -> list[list[TestRecord]]:
    """Return the piped records, which are always the same."""
    chance = random.Random(7)
    return [
        [
            TestRecord(chance.choice("xy"), chance.choice("abc"), chance.choice([None, *range(10)]), time_ms)
            for time_ms in (max(0, 10 * batch + chance.randint(-8, 12)) for _ in range(RECORDS))
        ]
        for batch in range(BATCHES)
    ]


def manifest_of(driver: InPages) -> Manifest:
    """Return the manifest in a checkpoint of a driver's topology."""
    return Manifest.of(stages_of(driver.plan), 1)


def keep(name: str) -> None:
    """Run the first batches, and write their state to files."""
    driver = InPages(topology(name))
    for batch in script()[:KEPT_AFTER]:
        driver.pipe_records(batch)
    stores = {
        store: {
            "log": [b64encode(chunk).decode() for chunk in variables.log],
            "pages": [[*page, b64encode(chunk).decode()] for page, chunk in sorted(variables.pages.items())],
        }
        for store, variables in driver.variables.items()
    }
    found = {"manifest": manifest_of(driver).to_json(), "stores": stores}
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def kept(name: str) -> tuple[Manifest, dict[str, MemoryVariables]]:
    """Read the stored state."""
    found = json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))
    variables = {
        store: MemoryVariables(
            [b64decode(chunk) for chunk in each["log"]],
            {Page(slot, part): b64decode(chunk) for slot, part, chunk in each["pages"]},
        )
        for store, each in found["stores"].items()
    }
    return Manifest.from_json(found["manifest"]), variables


if __name__ == "__main__":
    for each in TOPOLOGIES:
        keep(each)

"""Tests of state with very many keys.

Memory grows only for the touched keys. A process works on the state bucket by bucket. Files stand for Spark's state
store; all other code is that of the workers. With ten million keys, objects in memory would take gigabytes.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace_streams.layout import Layout
from millrace_streams.state.pages import Page
from millrace_streams.steps.packed_state import kept_rows, store_over
from millrace_streams.stores import KeyValueStore, StoreSpec
from millrace_streams.stores.below import packed

KEYS_PER_ROUND = 100_000
BATCH_KEYS = 50_000
BUCKETS = 8
GROWTH_MB = 50
GROWTH_MB_PER_MILLION_KEYS = 10
"""A million keys as objects would take 250 MB. Here only the directory of pages and their parts grows."""
SPEC = StoreSpec(
    name="sums",
    kind="key_value",
    layout=Layout(
        schema=pa.schema([("key", pa.int64()), ("value", pa.int64())]), key=("key",), bucket_columns=None, value="value"
    ),
)


@dataclass(frozen=True)
class FileVariables:
    """The state of a store in files."""

    directory: Path

    def read_log(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.directory.glob("log-*"))]

    def append_to_log(self, chunk: bytes) -> None:
        (self.directory / f"log-{len(list(self.directory.glob('log-*'))):09}").write_bytes(chunk)

    def replace_log(self, chunk: bytes) -> None:
        for path in self.directory.glob("log-*"):
            path.unlink()
        self.append_to_log(chunk)

    def read_page(self, page: Page) -> bytes | None:
        path = self._path(page)
        return path.read_bytes() if path.exists() else None

    def write_page(self, page: Page, chunk: bytes) -> None:
        self._path(page).write_bytes(chunk)

    def remove_page(self, page: Page) -> None:
        self._path(page).unlink(missing_ok=True)

    def _path(self, page: Page) -> Path:
        return self.directory / f"page-{page.slot}-{page.part}"


def add(directory: Path, keys: np.ndarray, amount: int) -> int:
    """Add an amount to keys in a micro-batch, bucket by bucket. Return the number of wrong results."""
    wrong = 0
    for bucket in range(BUCKETS):
        variables = FileVariables(directory / f"{bucket}")
        store = store_over(SPEC, kept := kept_rows(SPEC, variables))
        assert isinstance(store, KeyValueStore)
        own = keys[keys % BUCKETS == bucket].tolist()
        store.want(own)
        for key in own:
            stored = store.get(key)
            wrong += stored is not None and stored.value % 1000 != key % 1000
            store.put(key, (stored.value if stored is not None else key % 1000) + amount, 0)
        wrong += len(store.rows) > len(own)
        change = store.commit()
        kept.save(packed(SPEC, change.entries.items()), change.numbers, store.kept_from_ms)
    return wrong


def work(directory: Path, keys: int) -> None:
    """Fill the state, add at random and check everything. Report the growth of memory and the errors."""
    random = np.random.default_rng(1)
    for bucket in range(BUCKETS):
        (directory / f"{bucket}").mkdir()
    added = wrong = before_kb = 0
    for start in range(0, keys, BATCH_KEYS):
        wrong += add(directory, np.arange(start, start + BATCH_KEYS), 0)
        some = np.unique(random.integers(0, start + BATCH_KEYS, BATCH_KEYS // 10))
        wrong += add(directory, some, 1000)
        added += len(some)
        before_kb = before_kb or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    growth_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    values = [
        kept_rows(SPEC, FileVariables(directory / f"{bucket}")).rows(kept_from_ms=0)["value"]
        for bucket in range(BUCKETS)
    ]
    count, total = sum(map(len, values)), sum(int((each // 1000).sum()) for each in values)
    print(json.dumps({"growth_mb": growth_kb / 1000, "wrong": wrong, "keys": count, "missing": added - total}))


@pytest.mark.dial("STATE_ROUNDS", seconds=15)
def test_memory_does_not_grow_with_the_keys_in_state(rounds: int, tmp_path: Path) -> None:
    keys = rounds * KEYS_PER_ROUND
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path), str(keys)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["keys"] == keys
    assert found["wrong"] == found["missing"] == 0
    assert found["growth_mb"] < GROWTH_MB + GROWTH_MB_PER_MILLION_KEYS * keys / 1e6


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))

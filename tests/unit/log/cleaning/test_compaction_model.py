"""Model test of a compacted log against a list.

The list drops superseded records.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from .conftest import BUILDERS, Pair, clean, contents, open_partition, survivors

OPTIONS = {"segment.bytes": 1200, "segment.index.bytes": 96, "file.delete.delay.ms": 0}


class CompactedLog(RuleBasedStateMachine):
    """A compacted log. ``pairs`` is everything appended; before ``bound`` only the last record of each key is left."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.pairs: list[Pair] = []
        self.bound = 0

    @initialize()
    def open_first(self) -> None:
        self.open(was_clean=True)

    def open(self, *, was_clean: bool) -> None:
        self.log = open_partition(self.directory, was_clean=was_clean, options=OPTIONS)

    @rule(keys=st.lists(st.integers(0, 8), min_size=1, max_size=5), kind=st.sampled_from(sorted(BUILDERS)))
    def append(self, keys: list[int], kind: str) -> None:
        part: list[Pair] = [(b"k%d" % key, b"%d" % (len(self.pairs) + n)) for n, key in enumerate(keys)]
        self.log.append(BUILDERS[kind](part))
        self.pairs += part

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(slots=st.sampled_from([4, 50, 5000]))
    def compact(self, slots: int) -> None:
        self.log.flush()
        done = clean(self.log, slots=slots)
        self.bound = max(self.bound, 0 if done is None else done.end_offset)
        self.log.tick(producer_expiration_ms=10**9)

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.open(was_clean=True)

    @rule()
    def die_and_open(self) -> None:
        self.log.release()
        self.open(was_clean=False)

    @rule(position=st.integers(0, 1000))
    def read_from(self, position: int) -> None:
        offset = position % (len(self.pairs) + 1)
        expected = {at: pair for at, pair in survivors(self.pairs, self.bound).items() if at >= offset}
        found = {at: pair for at, pair in contents(self.log, offset).items() if at >= offset}
        assert found == expected

    @invariant()
    def holds_what_is_left(self) -> None:
        if hasattr(self, "log"):
            assert contents(self.log) == survivors(self.pairs, self.bound)
            assert self.log.log_end_offset == len(self.pairs)

    def teardown(self) -> None:
        shutil.rmtree(self.directory)


CompactedLog.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCompactedLog = CompactedLog.TestCase

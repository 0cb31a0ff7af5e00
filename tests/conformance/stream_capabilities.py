"""Table of Kafka Streams' own cases by runner.

.venv/bin/python -m tests.conformance.stream_capabilities      writes docs/streams/conformance.md
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .stream_cases import DRIVER_ALONE, QUIRKS, SPARK_RUNNERS, is_quirk, load_cases, turn_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "streams" / "conformance.md"
_HEAD = """\
# Conformance with Kafka Streams' own results

Each case is a script of records with the results of the real library (kafka-streams 3.9.1), record for record: keys,
windows, values, timestamps, order. The test driver runs each case in batches of 1, 3 and 1000 records, and compares the
stores too. Spark runs each case as a stream, with random micro-batches, and as a batch
(`tests/conformance/test_streams.py`, `tests/integration/test_streams_conformance.py`). In `make test` every second case
runs as a stream and the others as a batch (the last row); in `make soak` each case runs as both. The command
`python -m tests.conformance.stream_capabilities` makes this page from these suites. Each case that does not pass is
listed below with its reason.

| cases of | test driver | Spark, stream | Spark, batch |
|---|---|---|---|
"""


def document() -> str:
    """Return the text of the page."""
    by_category: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for case in load_cases():
        by_category[case["category"]].append(case)
    rows = [_row(category.replace("_", " "), cases) for category, cases in sorted(by_category.items())]
    rows.append(_row("**all**", load_cases()))
    rows.append(_row_of_tests())
    return _HEAD + "\n".join(rows) + "\n\n" + "\n".join(_reasons()) + "\n"


def _row(name: str, cases: list[dict[str, Any]]) -> str:
    followed = [case for case in cases if not is_quirk(case)]
    on_spark = [case for case in followed if case["name"] not in DRIVER_ALONE]
    counts = [f"{len(passing)} of {len(cases)}" for passing in (followed, on_spark, on_spark)]
    return f"| {name} | {' | '.join(counts)} |"


def _row_of_tests() -> str:
    """Return how many cases ``make test`` runs. On Spark the cases alternate between the runners."""
    cases = [(number, case) for number, case in enumerate(load_cases()) if not is_quirk(case)]
    turns = [turn_of(number) for number, case in cases if case["name"] not in DRIVER_ALONE]
    counts = [len(cases), *map(turns.count, SPARK_RUNNERS)]
    return f"| of these in `make test` | {' | '.join(map(str, counts))} |"


def _reasons() -> Iterator[str]:
    for case in load_cases():
        if is_quirk(case):
            yield f"* `{case['name']}`, nowhere: {QUIRKS[case['name']]}."
        elif case["name"] in DRIVER_ALONE:
            yield f"* `{case['name']}`, not on Spark: {DRIVER_ALONE[case['name']]}."


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")

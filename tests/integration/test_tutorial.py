"""Tests of the tutorial.

Its commands and programs run as they stand, page after page. Only two lines are left out, which install the environment
and start the broker. The test has both already. A program that the tutorial kills is a process of its own. The others
run in the tests' Spark session.
"""

from __future__ import annotations

import pytest

from .documented import ROOT, Reader

PAGES = sorted(page.name for page in (ROOT / "docs" / "tutorial").glob("[0-9]-*.md"))


@pytest.mark.spark
@pytest.mark.slow
def test_the_tutorial_ends_with_a_proved_table_and_hourly_revenue(reader: Reader) -> None:
    printed = {page: reader.follow(f"docs/tutorial/{page}") for page in PAGES}
    assert "refused, as it should be" in printed["1-first-topic.md"]
    assert "20003 orders" in printed["2-clients.md"]
    assert "orders of 49 and more" in printed["3-spark.md"]
    assert "proved: each range of offsets landed once" in printed["4-delta.md"]
    assert "Oslo" in printed["5-topology.md"]

"""Tests of the picture of the ratios.

It has one bar for each result, drawn from 1× outward, and is readable on light and dark pages.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from benchmarks import picture, suite
from benchmarks.harness import RESULTS
from benchmarks.report import RATIO_PLOT

LIGHT, DARK = "#ffffff", "#0d1117"
"""Background colours of code hosting sites and of the documentation site."""
_BAR = re.compile(r'<rect class="(ahead|behind)" x="([\d.]+)" y="\d+" width="([\d.]+)"[^>]*><title>(\w+)</title>')


def _result(median: float) -> dict[str, Any]:
    return {"ratio": {"min": median * 0.9, "median": median, "max": median * 1.1}}


def _bars(svg: str) -> dict[str, tuple[str, float, float]]:
    return {name: (kind, float(x), float(x) + float(width)) for kind, x, width, name in _BAR.findall(svg)}


def _contrast(colour: str, background: str) -> float:
    """Return the contrast ratio of two colours as the Web Content Accessibility Guidelines define it."""

    def luminance(code: str) -> float:
        channels = [int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(colour), luminance(background)))
    return (light + 0.05) / (dark + 0.05)


def test_every_benchmark_is_in_one_group_or_left_out_with_a_reason() -> None:
    placed = [name for labels in picture.GROUPS.values() for name in labels] + list(picture.LEFT_OUT)
    assert sorted(placed) == suite.names(), "add the benchmark to GROUPS or LEFT_OUT in benchmarks/picture.py"
    assert all(picture.LEFT_OUT.values())


def test_the_committed_picture_is_that_of_the_committed_results() -> None:
    results = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    assert RATIO_PLOT.read_text() == picture.picture(results), "run `make bench-report`"


def test_bars_begin_at_1_and_go_outward_in_two_colours() -> None:
    bars = _bars(picture.picture({"consume": _result(4.0), "compaction": _result(0.25), "broker_start": _result(16.0)}))
    ahead, behind, far = bars["consume"], bars["compaction"], bars["broker_start"]
    assert [kind for kind, _, _ in (ahead, behind, far)] == ["ahead", "behind", "ahead"]
    one = ahead[1]
    assert (far[1], behind[2]) == pytest.approx((one, one), abs=0.2)
    assert ahead[2] - one == pytest.approx(one - behind[1], abs=0.2), "4× and 0.25× are equally long"
    assert far[2] - one == pytest.approx(2 * (ahead[2] - one), abs=0.3), "the axis is logarithmic"


def test_benchmarks_without_a_result_and_limits_without_a_peer_have_no_bar() -> None:
    bars = _bars(picture.picture({"consume": _result(2.0), "streams_latency": _result(0.004)}))
    assert list(bars) == ["consume"]


@pytest.mark.parametrize("background", [LIGHT, DARK])
def test_colours_can_be_read_on_light_and_dark_pages(background: str) -> None:
    assert _contrast(picture.TEXT, background) >= 4
    assert min(_contrast(colour, background) for colour in (picture.AHEAD, picture.BEHIND)) >= 3

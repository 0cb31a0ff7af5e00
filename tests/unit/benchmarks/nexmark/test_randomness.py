"""Tests of each event's random draws and text lengths."""

from __future__ import annotations

import numpy as np
from benchmarks.nexmark.randomness import Draws, Text
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = np.arange(1000, dtype=np.int64)


@given(st.integers(-(2**63), 2**63 - 1), st.sets(st.integers(0, 999), min_size=1), st.integers(1, 2**31 - 1))
def test_an_events_draws_do_not_depend_on_other_events(seed: int, chosen: set[int], limit: int) -> None:
    places = np.array(sorted(chosen))
    every, some = Draws(seed, NUMBERS), Draws(seed, NUMBERS[places])
    for _ in range(3):
        assert np.array_equal(every.below(limit)[places], some.below(limit))
        assert np.array_equal(every.price()[places], some.price())


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_numbers_stay_below_their_limits(least: int, limit: int) -> None:
    draws = Draws(7, NUMBERS)
    common = draws.below(limit)
    assert common.min() >= 0
    assert common.max() < limit
    limits = np.where(NUMBERS % 2 == 0, least, limit)
    assert (draws.below(limits) < limits).all()


def test_numbers_are_spread_evenly_and_seeds_and_draws_differ() -> None:
    numbers = np.arange(100_000, dtype=np.int64)
    draws = Draws(1, numbers)
    drawn = [draws.below(10) for _ in range(4)] + [Draws(2, numbers).below(10)]
    for one in drawn:
        assert abs(np.bincount(one, minlength=10) - 10_000).max() < 500  # five standard deviations
    for place, one in enumerate(drawn):
        for other in drawn[:place]:
            assert abs((one == other).mean() - 0.1) < 0.005


def test_prices_have_evenly_spread_logarithms() -> None:
    prices = Draws(1, np.arange(100_000, dtype=np.int64)).price()
    assert prices.min() >= 100
    assert prices.max() < 100_000_000
    shares = np.histogram(np.log10(prices), bins=6, range=(2, 8))[0] / len(prices)
    assert abs(shares - 1 / 6).max() < 0.01


@given(st.lists(st.tuples(st.integers(0, Text.BYTES - 100), st.integers(0, 100)), min_size=1, max_size=50))
def test_texts_are_cut_where_they_stand(places: list[tuple[int, int]]) -> None:
    letters = bytes(TEXT.cut(np.array([0]), np.array([Text.BYTES]))[0].as_py(), "ascii")
    starts, lengths = np.array(places, dtype=np.int64).T
    expected = [letters[start : start + length].decode() for start, length in places]
    assert TEXT.cut(starts, lengths).to_pylist() == expected


TEXT = Text(3, "_")


def test_one_character_in_thirteen_is_special() -> None:
    letters = TEXT.cut(np.array([0]), np.array([Text.BYTES]))[0].as_py()
    assert abs(letters.count("_") / len(letters) - 1 / 13) < 0.002
    assert set(letters) == set("abcdefghijklmnopqrstuvwxyz_")
    assert "_" not in Text(3).cut(np.array([0]), np.array([Text.BYTES]))[0].as_py()

"""Rule that decides whether a row fell between two commits.

Old and new commit alternate for nine pairs in one run. Each pair gives one ratio, new to old, above 1 if the new commit
is better. The interval is Student's on the logarithms of the ratios, because 0.5 is as far from 1 as 2 is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PAIRS: Final = 9
FELL_BELOW: Final = 0.97
_T_95: Final = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom."""
PAIRS_MAX: Final = len(_T_95) + 1


class Verdict(StrEnum):
    """The answer of the rule."""

    FELL = "fell"
    DID_NOT_FALL = "did not fall"
    NONE = "no verdict"
    """The number of pairs was not nine."""


@dataclass(frozen=True)
class Interval:
    """The geometric mean of ratios and its 95 % interval."""

    low: float
    mean: float
    high: float


def interval(ratios: Sequence[float]) -> Interval:
    """Compute the 95 % interval of two to ``PAIRS_MAX`` positive ratios."""
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logarithms)
    margin = _T_95[len(ratios) - 2] * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return Interval(math.exp(mean - margin), math.exp(mean), math.exp(mean + margin))


def verdict(ratios: Sequence[float]) -> Verdict:
    """Judge the ratios of a row, which fell if the whole interval lies below ``FELL_BELOW``."""
    if len(ratios) != PAIRS:
        return Verdict.NONE
    return Verdict.FELL if interval(ratios).high < FELL_BELOW else Verdict.DID_NOT_FALL

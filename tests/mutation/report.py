"""The page of the mutants, ``docs/mutants.md``.

The page has the score by area, and survivors in classes.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .judging import Judgement, Verdict
from .scope import ROOT

PAGE = ROOT / "docs" / "mutants.md"
CLASSES = Path(__file__).with_name("survivors.toml")
NOT_YET = "not yet"
CLASS_TEXTS = {
    "equivalent": "The program does the same: no test can tell.",
    "performance": "The same results, sooner or later, or with more or less memory.",
    "message": "Only the text of an error or a log line is another.",
    "defensive": "Code against what the callers in this repository do not do.",
    "elsewhere": "Tests with Spark, processes or a cluster notice; they do not judge, because they are slow.",
    NOT_YET: "A test is missing.",
}


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A reason for the survival of a class of mutants.

    The names of these mutants contain ``where`` and ``change``.
    """

    kind: str
    where: str
    change: str = ""
    reason: str

    def fits(self, name: str) -> bool:
        """Tell whether this reason applies to a mutant."""
        return self.where in name and self.change in name


def read_reasons(path: Path = CLASSES) -> list[Reason]:
    """Read the known reasons. Raises ``ValueError`` for an unknown class."""
    reasons = [Reason(**entry) for entry in tomllib.loads(path.read_text())["survivor"]]
    for each in reasons:
        if each.kind not in CLASS_TEXTS:
            raise ValueError(f"{path.name}: {each.kind!r} is no class: {', '.join(CLASS_TEXTS)}")
    return reasons


def counted(verdicts: Iterable[Judgement]) -> Counter[Verdict]:
    """Return the number of mutants with each verdict."""
    return Counter(each.verdict for each in verdicts)


def score(counts: Mapping[Verdict, int]) -> float:
    """Return the part of the mutants that a test noticed, by a failure or a timeout."""
    return (counts.get(Verdict.KILLED, 0) + counts.get(Verdict.TIMEOUT, 0)) / max(sum(counts.values()), 1)


def is_control(name: str) -> bool:
    """Tell whether the mutant is a control, which changes nothing."""
    return name.startswith("control ")


def summary(verdicts: Mapping[str, Judgement]) -> str:
    """Return the score and its numbers in one line."""
    counts = counted(each for name, each in verdicts.items() if not is_control(name))
    failed = sum(each.verdict is not Verdict.SURVIVED for name, each in verdicts.items() if is_control(name))
    numbers = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return f"score {score(counts):.1%}: {numbers}; controls that failed: {failed}"


def page_text(
    verdicts: Mapping[str, Judgement], areas: Mapping[str, str], candidates: int, seed: int, made: str
) -> str:
    """Return the text of the page. ``areas`` has the area of each module, ``made`` the date and the commit."""
    by_area: dict[str, list[Judgement]] = defaultdict(list)
    controls = [each for name, each in verdicts.items() if is_control(name)]
    for name, each in verdicts.items():
        if not is_control(name):
            by_area[areas[name.partition(" ")[0]]].append(each)
    every = [each for group in by_area.values() for each in group]
    lines = [
        "# Mutants",
        "",
        f"`make mutants SEED={seed}`: {len(every):,} of {candidates:,} mutants, {made}. "
        f"**Score {score(counted(every)):.1%}** (goal 90 %). Of {len(controls)} controls, in which nothing was "
        f"changed, {sum(each.verdict is not Verdict.SURVIVED for each in controls)} failed. "
        f"{sum(each.is_kept for each in every):,} of the kills are those of earlier runs, by tests and in modules "
        "whose code is the same since. "
        "[0037](design/0037-mutation-testing.md) says how it is done; this page is written by the run.",
        "",
        "| Area | Mutants | Killed | By time | Survived | Not covered | Score |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for area in dict.fromkeys(areas.values()):
        counts = counted(by_area[area])
        numbers = [counts[Verdict.KILLED], counts[Verdict.TIMEOUT], counts[Verdict.SURVIVED], counts[Verdict.UNCOVERED]]
        cells = [str(each) for each in (area, sum(numbers), *numbers, f"{score(counts):.1%}")]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Survivors", ""]
    reasons = read_reasons()
    classes: dict[str, dict[str, list[str]]] = {kind: defaultdict(list) for kind in CLASS_TEXTS}
    for name, each in sorted(verdicts.items()):
        if each.verdict in (Verdict.SURVIVED, Verdict.UNCOVERED) and not is_control(name):
            known = next((reason for reason in reasons if reason.fits(name)), None)
            kind, reason = (known.kind, known.reason) if known is not None else (NOT_YET, "")
            classes[kind][reason].append(name + (" (not covered)" if each.verdict is Verdict.UNCOVERED else ""))
    for kind, text in CLASS_TEXTS.items():
        lines += [f"### {kind.capitalize()}: {sum(map(len, classes[kind].values()))}", "", text, ""]
        for reason, names in sorted(classes[kind].items()):
            lines += [f"{reason}:", ""] if reason else []
            lines += [f"- `{name}`" for name in names]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def write_page(verdicts: Mapping[str, Judgement], areas: Mapping[str, str], candidates: int, seed: int) -> None:
    """Write the page of a complete run."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    PAGE.write_text(page_text(verdicts, areas, candidates, seed, f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}"))

"""Tests of mutation testing.

The tests check the mutants, the tests that cover them, and the counts.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.mutation.__main__ import draw, read_state, tree_digest
from tests.mutation.judging import Coverage, Judgement, Verdict
from tests.mutation.kills import Kills, code_digest
from tests.mutation.mutants import Mutant, find_mutants, install, live_functions, names_of
from tests.mutation.report import Reason, page_text, read_reasons, score, summary
from tests.mutation.scope import ROOT, modules

MODULE = '''
"""A module."""
from functools import cache

LIMIT = 5

def is_small(number: int, limit: int = LIMIT) -> bool:
    """Compare."""
    return number < limit

@cache
def cached(number):
    def inner(other):
        return other + number
    return inner(1)

class Box:
    size = 3

    def grow(self):
        self.size += 2
        _LOG.info("grown by %d", 2)
        assert self.size > 0, "no box"
        if self.is_full:
            raise ValueError(f"{self.size + 1} is too much")
        return None

    def __repr__(self):
        return "Box" * 2
'''


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "boxes.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("boxes", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def changes(source: str, tmp_path: Path) -> list[str]:
    """Return the changes of a function's body."""
    (tmp_path / "m.py").write_text(f"def f(a, b, c):\n    {source}\n")
    return [f"{mutant.before} -> {mutant.after}" for mutant in find_mutants(tmp_path, "m.py")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("return a < b", ["return a < b -> return None", "a < b -> a <= b", "a < b -> a >= b"]),
        ("return a == b", ["return a == b -> return None", "a == b -> a != b"]),
        ("c = a is None or b in c", ["a is None or b in c -> a is None and b in c", "a is None -> a is not None",
                                     "b in c -> b not in c"]),
        ("c = a + b * -1", ["a + b * -1 -> a - b * -1", "b * -1 -> b // -1", "-1 -> 1", "1 -> 2", "1 -> 0"]),
        ("c = a[b:7]", ["b:7 -> :7", "b:7 -> b:", "7 -> 8", "7 -> 6"]),
        ("c = min(a, default=True)", ["min(a, default=True) -> max(a, default=True)", "True -> False"]),
        ("a.b = 'text' + c", ["a.b = 'text' + c -> pass"]),
        ("a -= b", ["a -= b -> a += b", "a -= b -> pass"]),
        ("c = a if not b else c", ["not b -> b"]),
        ("while a.b: break", ["a.b -> not a.b", "break -> pass"]),
        ("return [a for a in b if c(a)]", ["return [a for a in b if c(a)] -> return None", "c(a) -> not c(a)"]),
        ("return False", ["False -> True"]),
        ("return None", []),
        ("raise a(b + 1)", ["raise a(b + 1) -> pass"]),
        ("await a(b)", []),
        ("a: int = 1 < b", ["1 < b -> 1 <= b", "1 < b -> 1 >= b", "1 -> 2", "1 -> 0"]),
    ],
)  # fmt: skip
def test_a_function_is_changed_in_all_that_decides(source: str, expected: list[str], tmp_path: Path) -> None:
    if source.startswith("await"):
        (tmp_path / "m.py").write_text(f"async def f(a, b):\n    {source}\n")
        assert [mutant.after for mutant in find_mutants(tmp_path, "m.py")] == ["pass"]
    else:
        assert changes(source, tmp_path) == expected


def test_texts_log_calls_assertions_and_messages_stay(module: ModuleType, tmp_path: Path) -> None:
    found = [mutant for mutant in find_mutants(tmp_path, "boxes.py") if mutant.function == "Box.grow"]
    assert [f"{mutant.before} -> {mutant.after}" for mutant in found] == [
        "self.size += 2 -> self.size -= 2",
        "self.size += 2 -> pass",
        "2 -> 3",
        "2 -> 1",
        "self.is_full -> not self.is_full",
        "raise ValueError(f'{self.size + 1} is too much') -> pass",
    ]
    assert not [mutant for mutant in find_mutants(tmp_path, "boxes.py") if "__repr__" in mutant.function]


def test_changes_that_read_the_same_have_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(a):\n    return a + 1, a + 1\n")
    names = names_of(find_mutants(tmp_path, "m.py"))
    assert len(set(names)) == len(names)
    assert "m.py f: arithmetic: a + 1 -> a - 1" in names
    assert "m.py f: arithmetic: a + 1 -> a - 1 (2)" in names


def test_a_mutant_is_put_into_the_functions_that_are_loaded(module: ModuleType, tmp_path: Path) -> None:
    imported = module.is_small
    functions = live_functions([str(tmp_path / "boxes.py")])
    mutants = {mutant.name.partition(": ")[2]: mutant for mutant in find_mutants(tmp_path, "boxes.py")}
    assert not imported(5)
    install(tmp_path, mutants["boundary: number < limit -> number <= limit"], functions)
    assert imported(5)
    assert not imported(6)
    install(tmp_path, mutants["arithmetic: other + number -> other - number"], functions)
    assert module.cached(7) == -6, "also within a function, and behind a decorator"
    box = module.Box()
    box.is_full = False
    module._LOG = type("Log", (), {"info": print})
    install(tmp_path, mutants["arithmetic: self.size += 2 -> self.size -= 2"], functions)
    box.grow()
    assert box.size == 1


def test_tests_that_were_in_a_changed_line_judge_it() -> None:
    found = Mutant(
        path="m.py", function="f", operator="swap", before="a", after="b", number=0, lines=(4, 5), statement=3
    )
    coverage = Coverage(lines={"m.py": {"line 3": 1 << 3, "line 5": 1 << 5 | 1 << 2, "line 6": 1 << 6}})
    assert coverage.tests_of(found) == ["line 5"]
    coverage = Coverage(lines={"m.py": {"line 3": 1 << 3, "line 6": 1 << 6}})
    assert coverage.tests_of(found) == ["line 3"], "the beginning of its statement"
    assert Coverage().tests_of(found) == []


def test_a_seed_draws_the_same_mutants() -> None:
    candidates = dict.fromkeys([f"mutant {number}" for number in range(1000)])
    one, again, other = (draw(candidates, seed, 20) for seed in (1, 1, 2))  # type: ignore[arg-type]
    assert one == again != other
    assert len(set(one)) == 20
    assert sorted(draw(candidates, 1, 5000)) == sorted(candidates)  # type: ignore[arg-type]
    without = {name: mutant for name, mutant in candidates.items() if name != one[7]}
    assert set(draw(without, 1, 20)) > set(one) - {one[7]}  # type: ignore[arg-type]


def test_the_page_has_the_score_of_each_area_and_survivors_with_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, timeout = Judgement(Verdict.KILLED, "test_x"), Judgement(Verdict.TIMEOUT)
    survived, uncovered = Judgement(Verdict.SURVIVED), Judgement(Verdict.UNCOVERED)
    verdicts = {
        "a.py f: swap: min(b) -> max(b)": killed,
        "a.py f: constant: 1 -> 2": timeout,
        "a.py g: constant: 1 -> 2": survived,
        "b.py f: constant: 1 -> 2": uncovered,
        "control 0": survived,
        "control 1": killed,
    }
    assert summary(verdicts) == "score 50.0%: 1 killed, 1 survived, 1 timeout, 1 uncovered; controls that failed: 1"
    assert score({}) == 0
    reasons = [Reason(kind="equivalent", where="a.py g", change="1 -> 2", reason="Nobody counts them")]
    monkeypatch.setattr("tests.mutation.report.read_reasons", lambda: reasons)
    text = page_text(verdicts, {"a.py": "one", "b.py": "two"}, 9000, 7, "today")
    assert "`make mutants SEED=7`: 4 of 9,000 mutants, today. **Score 50.0%** (goal 90 %). Of 2 controls" in text
    assert "| one | 3 | 1 | 1 | 1 | 0 | 66.7% |\n| two | 1 | 0 | 0 | 0 | 1 | 0.0% |" in text
    assert "### Equivalent: 1\n" in text
    assert "Nobody counts them:\n\n- `a.py g: constant: 1 -> 2`" in text
    assert text.endswith("### Not yet: 1\n\nA test is missing.\n\n- `b.py f: constant: 1 -> 2 (not covered)`\n")


def test_areas_have_modules_and_each_module_one_area() -> None:
    assert set(modules().values()) == {
        "records", "indexes", "assignors", "log", "cleaner", "replication", "controller", "groups", "transactions",
        "purgatory", "planning", "filters", "windows", "steps", "stores",
    }  # fmt: skip
    assert all((ROOT / path).is_file() for path in modules())


def test_a_run_continues_only_while_sources_and_tests_are_the_same(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    source, reasons = tmp_path / "broker" / "a.py", tmp_path / "tests" / "mutation" / "survivors.toml"
    for path in (source, reasons):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    for tree in ("platform", "spark_source", "streams_dsl"):
        (tmp_path / tree).mkdir()
    digest = tree_digest(tmp_path)
    reasons.write_text("2")
    assert tree_digest(tmp_path) == digest
    source.write_text("2")
    assert tree_digest(tmp_path) != digest
    source.write_text("1")
    assert tree_digest(tmp_path) == digest
    (tmp_path / "tests" / "test_new.py").write_text("")
    assert tree_digest(tmp_path) != digest


def test_a_kill_is_taken_over_while_its_module_and_its_test_have_the_same_code(tmp_path: Path) -> None:
    module, test = tmp_path / "m.py", tmp_path / "test_m.py"
    name, timed = "m.py f: constant: 1 -> 2", "m.py f: constant: 1 -> 0"
    module.write_text('"""A module."""\ndef f():\n    return 1\n')
    test.write_text("def test_f():\n    assert f() == 1\n")

    def kills() -> Kills:
        code_digest.cache_clear()
        return Kills(tmp_path / "kills.jsonl", tmp_path)

    kills().add(name, Judgement(Verdict.KILLED, "test_m.py::test_f", 0.5))
    kills().add(timed, Judgement(Verdict.TIMEOUT))
    kills().add("m.py f: constant: 3 -> 4", Judgement(Verdict.SURVIVED))
    expected = {
        name: Judgement(Verdict.KILLED, "test_m.py::test_f", 0.5, is_kept=True),
        timed: Judgement(Verdict.TIMEOUT, is_kept=True),
    }
    assert kills().known([name, timed, "m.py f: constant: 3 -> 4"]) == expected
    assert kills().known([timed]) == {timed: expected[timed]}
    module.write_text("def f():\n    return 1  # the same code\n")
    assert kills().known([name, timed]) == expected
    test.write_text("def test_f():\n    assert f() > 0\n")
    assert kills().known([name, timed]) == {timed: expected[timed]}
    module.write_text("def f():\n    return 1 + 0\n")
    test.unlink()
    assert kills().known([name, timed]) == {}


@pytest.mark.slow
def test_mutants_are_judged_and_a_second_run_continues_where_the_first_stopped(tmp_path: Path) -> None:
    arguments = ["--only", "filters/condition", "--tests", "tests/unit/spark_source/filters/test_filters.py"]
    arguments += ["--state", str(tmp_path), "--seed", "1", "--controls", "2", "--fresh"]
    command = [sys.executable, "-m", "tests.mutation", *arguments]

    def run(count: int) -> tuple[str, dict[str, Judgement]]:
        done = subprocess.run([*command, "--count", str(count)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (state,) = tmp_path.glob(f"*-{count}.jsonl")
        return done.stdout, read_state(state)

    _, verdicts = run(15)
    (state,) = tmp_path.glob("*-15.jsonl")
    assert sum(name.startswith("control") and each.verdict is Verdict.SURVIVED for name, each in verdicts.items()) == 2
    killed = [each for each in verdicts.values() if each.verdict is Verdict.KILLED]
    assert len(killed) >= 8
    assert all(each.test.startswith("tests/unit/spark_source/filters") for each in killed)
    lines = state.read_text().splitlines()
    kept, dropped = lines[:-1], json.loads(lines[-1])["name"]
    state.write_text("\n".join(kept) + "\n")
    said, again = run(15)
    assert re.search(r"score \d+", said)
    assert again.keys() == verdicts.keys()
    assert state.read_text().splitlines()[:-1] == kept
    assert json.loads(state.read_text().splitlines()[-1])["name"] == dropped


def test_each_survivor_has_one_entry_with_a_class_and_a_reason() -> None:
    reasons = read_reasons()
    assert all(each.where and each.reason for each in reasons)
    assert len({(each.where, each.change) for each in reasons}) == len(reasons)

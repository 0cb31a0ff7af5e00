"""Tests of the count of lines that changed since a result.

Only changes of loaded modules count. Moves, renames and comments do not.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from benchmarks import report
from benchmarks.harness import RESULTS
from benchmarks.staleness import LINES_MAX, History, Tree, changed_lines

LOG = "broker/millrace_broker/log.py"
CLIENT = "platform/millrace/client.py"
OTHER = "broker/millrace_broker/other.py"
_AUTHOR = ("-c", "user.name=t", "-c", "user.email=t@example.org")
BODY = "def append(batch):\n    check(batch)\n    write(batch)\n"


def _tree(**modules: str) -> Tree:
    paths = {"log": LOG, "client": CLIENT, "other": OTHER}
    return Tree({paths[name]: text for name, text in modules.items()}, lambda text: text)


def _changed(old: Tree, new: Tree, loaded: tuple[str, ...] = (LOG,), **renames: str) -> int:
    return changed_lines(loaded, old, new, renames)


def test_equal_modules_have_no_changed_lines() -> None:
    assert _changed(_tree(log=BODY), _tree(log=BODY)) == 0


def test_a_changed_line_counts_as_one_removed_and_one_added() -> None:
    assert _changed(_tree(log=BODY), _tree(log=BODY.replace("write(batch)", "write(batch, 1)"))) == 2


def test_a_module_that_was_not_loaded_does_not_count() -> None:
    assert _changed(_tree(log=BODY, client="a = 1\n"), _tree(log=BODY, client="a = 2\n")) == 0


def test_comments_docstrings_and_layout_do_not_count() -> None:
    written_anew = (
        '"""A log."""\n\n\ndef append(batch):\n    """Append."""\n    # first\n    check(\n        batch\n    )\n\n'
    )
    assert _changed(_tree(log=BODY), _tree(log=written_anew + "    write(batch)\n")) == 0


def test_a_text_that_is_a_value_counts() -> None:
    assert _changed(_tree(log='name = "a"\n'), _tree(log='name = "b"\n')) == 2


def test_lines_that_moved_to_a_module_that_is_not_loaded_do_not_count() -> None:
    helper = "def check(batch):\n    assert batch\n"
    old, new = _tree(log=helper + BODY, client="a = 1\n"), _tree(log=BODY, client="a = 1\n" + helper)
    assert _changed(old, new) == 0


def test_lines_that_moved_into_a_class_do_not_count_and_the_class_does() -> None:
    new = "class Log:\n" + "".join(f"    {line}\n" for line in BODY.splitlines())
    assert _changed(_tree(log=BODY), _tree(log=new)) == 1


def test_a_new_module_counts_when_a_loaded_one_imports_it() -> None:
    added = "def check(batch):\n    assert batch\n"
    old = _tree(log=BODY)
    assert _changed(old, _tree(log=BODY, other=added)) == 0
    assert _changed(old, _tree(log="from millrace_broker import other\n" + BODY, other=added)) == 3


def test_a_renamed_module_is_followed() -> None:
    old, new = _tree(log=BODY), _tree(other=BODY + "more = 1\n")
    assert _changed(old, new, **{LOG: OTHER}) == 1


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (LINES_MAX - 1, f"{LINES_MAX - 1} lines"),
        (LINES_MAX, f"{LINES_MAX} lines"),
        (LINES_MAX + 1, f"**stale**, {LINES_MAX + 1} lines"),
        (None, "unknown"),
    ],
)
def test_a_row_is_stale_above_the_stated_number(lines: int | None, says: str) -> None:
    assert report.age(lines) == says


def test_the_stated_number_is_that_of_the_code() -> None:
    readme = Path(report.__file__).with_name("README.md").read_text()
    assert f"more than {LINES_MAX} lines" in " ".join(readme.split())


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Create a clone with two commits. The second one changes one line of a module of the log."""
    project = tmp_path / "project"
    module = project / LOG
    module.parent.mkdir(parents=True)
    _git(project, "init", "--quiet", "--initial-branch=trunk")
    for text in (BODY, BODY.replace("write(batch)", "write(batch, 1)")):
        module.write_text(text)
        _commit(project)
    return project


def _commit(project: Path) -> None:
    _git(project, "add", ".")
    _git(project, *_AUTHOR, "commit", "--quiet", "-m", "change")


def _git(project: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=project, capture_output=True, text=True, check=True).stdout.strip()


def test_the_history_of_a_clone_tells_the_changed_lines_of_recorded_modules(clone: Path) -> None:
    result = {"name": "log_append", "commit": _git(clone, "rev-parse", "HEAD~1")}
    assert History(clone).changed_since(result | {"modules": {"broker/millrace_broker": "log"}}) == 2
    assert History(clone).changed_since(result | {"modules": {"platform/millrace": "ids"}}) == 0


def test_a_result_without_recorded_modules_has_the_folders_of_its_kind(clone: Path) -> None:
    commit = _git(clone, "rev-parse", "HEAD~1")
    assert History(clone).changed_since({"name": "produce_table", "commit": commit}) == 2
    assert History(clone).changed_since({"name": "rows_decode", "commit": commit}) == 0


def test_a_commit_that_a_shallow_clone_lacks_is_unknown(clone: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    _git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{clone}", str(shallow))
    result = {"name": "log_append", "commit": _git(clone, "rev-parse", "HEAD~1")}
    assert History(shallow).changed_since(result) is None


def test_outside_a_clone_everything_is_unknown(tmp_path: Path) -> None:
    assert History(tmp_path).changed_since({"name": "log_append", "commit": "1234"}) is None
    assert History(tmp_path).head is None


def test_lines_are_counted_up_to_the_newest_commit_of_main_in_a_branch(clone: Path) -> None:
    modules = {"broker/millrace_broker": "log"}
    result = {"name": "log_append", "commit": _git(clone, "rev-parse", "HEAD"), "modules": modules}
    _git(clone, "branch", "--force", "main")
    newest = _git(clone, "rev-parse", "main")
    _git(clone, "checkout", "--quiet", "-B", "work")
    (clone / LOG).write_text("rebased = True\n")
    _commit(clone)
    assert History(clone).head == newest
    assert History(clone).changed_since(result) == 0
    _git(clone, "branch", "--force", "main", "work")
    assert History(clone).head == _git(clone, "rev-parse", "work")
    assert History(clone).changed_since(result) == 4


def test_a_clone_without_main_counts_up_to_its_head(clone: Path) -> None:
    assert History(clone).head == _git(clone, "rev-parse", "trunk")


def test_a_commit_that_a_rebase_replaced_is_in_no_history(clone: Path) -> None:
    replaced = _git(clone, "rev-parse", "HEAD")
    assert History(clone).has(replaced)
    (clone / LOG).write_text("amended = True\n")
    _git(clone, *_AUTHOR, "commit", "--quiet", "--amend", "--all", "-m", "another")
    assert not History(clone).has(replaced)
    assert History(clone).is_whole


def test_the_report_and_its_results_name_commits_of_this_history() -> None:
    history = History()
    if history.head is None or not history.is_whole:
        pytest.skip("no clone with all commits")
    (head,) = re.findall(r"until commit `(\w+)`", report.REPORT.read_text())
    measured = {path.name: json.loads(path.read_text())["commit"] for path in RESULTS.glob("*.json")}
    gone = [name for name, commit in {"RESULTS.md": head, **measured}.items() if not history.has(commit)]
    assert gone == [], "run python -m benchmarks.report, and measure on commits of main"

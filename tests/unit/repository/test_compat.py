"""Tests of the tool behind ``make compat``.

The tests check its ledgers, and the page that is made of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ...compat import differences, ledger
from ...compat.ledger import NOT_RUN, Result, Row, complaints, results_of_junit
from ...compat.librdkafka import results_of_output
from ...compat.page import PAGE, page

PASSED, FAILED = Result("pass"), Result("fail", "no such call")


def test_the_page_of_suites_is_what_the_ledgers_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.compat.page"


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (Row("t", PASSED, PASSED), []),
        (Row("t", FAILED, FAILED), []),
        (Row("t", PASSED, FAILED), ["s t passes with Kafka and not with millrace: no such call"]),
        (Row("t", PASSED, NOT_RUN), ["s t passes with Kafka and not with millrace: "]),
        (Row("t", NOT_RUN, FAILED), ["s t does not pass with millrace: no such call"]),
    ],
)
def test_a_test_that_only_kafka_passes_needs_an_explanation(row: Row, found: list[str]) -> None:
    assert list(complaints("s", [row, Row("u", PASSED, PASSED)])) == found


def test_an_explanation_goes_when_the_test_passes_or_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "DIFFERENCES", {"s": {"t": "why", "u": "why", "v": "why"}})
    rows = [Row("t", PASSED, PASSED), Row("u", PASSED, FAILED)]
    assert list(complaints("s", rows)) == [
        "s t is no difference any more: take it out of DIFFERENCES",
        "s v is in DIFFERENCES, and the suite has no such test",
    ]


def test_a_suite_in_which_nothing_passes_is_reported() -> None:
    assert list(complaints("s", [])) == ["s: no test passed with millrace"]


def test_the_committed_ledgers_need_no_further_explanation() -> None:
    suites = {path.stem for path in ledger.FOLDER.glob("*.tsv")}
    assert set(differences.DIFFERENCES) <= suites
    assert [sentence for suite in sorted(suites) for sentence in complaints(suite, ledger.read(suite))] == []


def test_results_of_a_part_leave_the_others_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FOLDER", tmp_path)
    both = {"a": PASSED, "b": FAILED}
    ledger.write("s", {"kafka": both, "millrace": both}, is_whole=True)
    ledger.write("s", {"millrace": {"b": PASSED}}, is_whole=False)
    assert ledger.read("s") == [Row("a", PASSED, PASSED), Row("b", Result("fail"), PASSED)]
    ledger.write("s", {"kafka": {"b": PASSED}, "millrace": {"b": PASSED}}, is_whole=True)
    assert ledger.read("s") == [Row("b", PASSED, PASSED)]


def test_a_reason_has_nothing_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FOLDER", tmp_path)
    command = f'{tmp_path}/kafka/bin/tool.sh --server 127.0.0.1:54881\n--create --topic "rdk_rnd5976e2d249c3ab25_x" 1/2'
    reason = f'system("{command}")'
    ledger.write("s", {"millrace": {"a": Result("fail", reason)}}, is_whole=True)
    shown = 'system("tool.sh --server 127.0.0.1 --create --topic "rdk_rnd_x" 1/2")'
    assert [row.millrace.reason for row in ledger.read("s")] == [shown]


def test_results_are_read_from_a_report_of_pytest(tmp_path: Path) -> None:
    cases = '<testcase classname="x.m" name="a"/><testcase classname="x.m" name="b"><failure message="no"/></testcase>'
    skipped = '<testcase classname="x.m" name="c"><skipped message="old"/></testcase>'
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}{skipped}</testsuite></testsuites>")
    assert results_of_junit(report) == {"m::a": PASSED, "m::b": Result("fail", "no"), "m::c": Result("skip", "old")}


_TABLE = """\
| 0042_first             |     PASSED |   1.234s |
| 0042_second            |     FAILED |  12.000s | no records
| 0042_third             |    SKIPPED |   0.000s | needs SASL
| 0042_fourth            |    SKIPPED |   0.000s | Filtered due to negative test flags
"""
_STOPPED = """\
[0042_first / 0.1s] ===== Running test 0042_first =====
[0042_first / 0.2s] ================= Test 0042_first PASSED =================
[0042_second / 0.2s] ===== Running test 0042_second =====
### Test "0042_second" failed at 0042-x.c:12 ###
Expected 10 records
"""


def test_results_of_librdkafka_are_read_from_its_table_or_from_its_log() -> None:
    assert results_of_output(_TABLE, "0042", "ended with 1") == {
        "0042_first": PASSED,
        "0042_second": Result("fail", "no records"),
        "0042_third": Result("skip", "needs SASL"),
    }
    assert results_of_output(_STOPPED, "0042", "ended with 1") == {
        "0042_first": PASSED,
        "0042_second": Result("fail", "ended with 1 Expected 10 records"),
    }
    assert results_of_output(_TABLE.splitlines()[3], "0042", "ended with 0") == {}
    assert results_of_output("", "0042", "did not end") == {"0042": Result("fail", "did not end")}

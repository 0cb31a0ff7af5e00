"""Tests of a job's output for its batches, and of its end."""

import pytest

from pyspark_millrace.job import JobArguments, Report, run_job


def test_each_batch_is_reported_once(capsys):
    report = Report()
    for batch in ((0, 10, 1.0), (0, 10, 1.0), (1, 0, 0.5), (2, 5000, 2.0)):
        report.add(*batch)
    assert report.rows == 5010
    assert capsys.readouterr().out == (
        "batch 0: 10 rows in 1.0 s (10 rows/s)\nbatch 2: 5,000 rows in 2.0 s (2,500 rows/s)\n"
    )


@pytest.mark.parametrize(("stopped", "code"), [(False, 1), (True, 0)])
def test_a_failure_is_reported_in_a_sentence_unless_the_job_was_stopped(capsys, stopped, code):
    def run(arguments, stopping):
        if stopped:
            stopping.set()
        raise ValueError("no such thing")

    assert run_job(run, JobArguments()) == code
    assert capsys.readouterr().err == ("" if stopped else "error: no such thing\n")

"""What the demo finds on the disk, also after it was killed."""

from millrace_streams.demo.report import is_delta_table


def test_a_log_without_a_commit_is_no_table_yet(tmp_path):
    assert not is_delta_table(tmp_path / "nowhere")
    (tmp_path / "_delta_log").mkdir()
    assert not is_delta_table(tmp_path)
    (tmp_path / "_delta_log" / f"{0:020d}.json").touch()
    assert is_delta_table(tmp_path)

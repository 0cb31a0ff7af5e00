"""Tests of the cleaner's checkpoint file.

The file has the offsets up to which partitions are clean.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace_broker.log import OsFiles
from millrace_broker.log.checkpoints import read_offsets, write_offsets
from millrace_broker.log.cleaning.checkpoints import CLEANER_OFFSETS, CleanerCheckpoints

KEY, OTHER = ("orders", 0), ("orders", 1)


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_offsets(OsFiles(), tmp_path / name / CLEANER_OFFSETS, {KEY: 5, OTHER: 7})
    return [tmp_path / "a", tmp_path / "b"]


def written(directory: Path) -> dict[tuple[str, int], int]:
    return read_offsets(OsFiles(), directory / CLEANER_OFFSETS)


def open_checkpoints(directories: list[Path], *present: tuple[str, int]) -> CleanerCheckpoints:
    return CleanerCheckpoints(OsFiles(), directories, set(present))


def test_offsets_are_kept_per_directory(directories: list[Path]) -> None:
    checkpoints = open_checkpoints(directories, KEY, OTHER)
    checkpoints.put(directories[0], KEY, 9)
    assert [checkpoints.get(directory, KEY) for directory in directories] == [9, 5]
    assert [written(directory) for directory in directories] == [{KEY: 9, OTHER: 7}, {KEY: 5, OTHER: 7}]


@pytest.mark.parametrize(("end_offset", "clean"), [(4, 4), (5, 5), (6, 5)])
def test_truncation_lowers_the_clean_offset(directories: list[Path], end_offset: int, clean: int) -> None:
    checkpoints = open_checkpoints(directories, KEY, OTHER)
    checkpoints.truncate(directories[0], KEY, end_offset)
    assert checkpoints.get(directories[0], KEY) == written(directories[0])[KEY] == clean


def test_truncation_of_a_partition_that_never_was_cleaned_changes_nothing(directories: list[Path]) -> None:
    checkpoints = open_checkpoints(directories, KEY, OTHER)
    checkpoints.truncate(directories[0], ("orders", 2), 0)
    assert checkpoints.get(directories[0], ("orders", 2)) is None


def test_a_damaged_file_means_that_nothing_is_clean(directories: list[Path]) -> None:
    (directories[0] / CLEANER_OFFSETS).write_text("0\n7\n")
    checkpoints = open_checkpoints(directories, KEY, OTHER)
    assert [checkpoints.get(directory, KEY) for directory in directories] == [None, 5]
    checkpoints.put(directories[0], OTHER, 3)
    assert written(directories[0]) == {OTHER: 3}


def test_partitions_that_are_gone_are_left_out_before_one_of_their_name_comes(directories: list[Path]) -> None:
    checkpoints = open_checkpoints(directories, OTHER)
    assert checkpoints.get(directories[0], KEY) is None
    assert written(directories[0]) == {KEY: 5, OTHER: 7}, "the next write leaves it out"
    checkpoints.forget(directories[0], OTHER)
    assert checkpoints.get(directories[0], OTHER) is None
    checkpoints.drop_deleted(OTHER)
    assert [written(directory) for directory in directories] == [{}, {KEY: 5, OTHER: 7}]
    checkpoints.drop_deleted(KEY)
    assert [written(directory) for directory in directories] == [{}, {OTHER: 7}]


def test_a_partition_that_is_not_in_the_file_costs_no_write(directories: list[Path]) -> None:
    checkpoints = open_checkpoints(directories, KEY, OTHER)
    for directory in directories:
        (directory / CLEANER_OFFSETS).unlink()
    checkpoints.forget(directories[0], ("orders", 2))
    checkpoints.drop_deleted(("orders", 2))
    checkpoints.drop_deleted(KEY)
    assert not any((directory / CLEANER_OFFSETS).exists() for directory in directories)

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.errors import StorageError
from millrace_broker.log import OsFiles
from millrace_broker.log.checkpoints import read_epochs, read_offsets, write_epochs, write_offsets

partitions = st.tuples(st.text("abc._-", min_size=1), st.integers(0, 2**31 - 1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(offsets=st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=5))
def test_offsets_are_read_as_they_were_written(tmp_path: Path, offsets: dict[tuple[str, int], int]) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    write_offsets(OsFiles(), path, offsets)
    assert read_offsets(OsFiles(), path) == offsets
    assert sorted(name.name for name in tmp_path.iterdir()) == [path.name, f"{path.name}.crc32c"]


def test_any_bit_that_flips_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log-start-offset-checkpoint"
    for offset in (7, 12):
        write_offsets(OsFiles(), path, {("a", 0): offset})
    for damaged in (path, path.with_name(path.name + ".crc32c")):
        sound = damaged.read_bytes()
        for bit in range(8 * (len(sound) if damaged is path else 9)):
            content = bytearray(sound)
            content[bit // 8] ^= 1 << bit % 8
            damaged.write_bytes(content)
            with pytest.raises(StorageError, match="is damaged"):
                read_offsets(OsFiles(), path)
        damaged.write_bytes(sound)
    assert read_offsets(OsFiles(), path) == {("a", 0): 12}


def test_between_checksum_and_file_the_old_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "log-start-offset-checkpoint"
    write_offsets(OsFiles(), path, {("a", 0): 7})
    old = path.read_bytes()
    write_offsets(OsFiles(), path, {("a", 0): 12})
    path.write_bytes(old)
    assert read_offsets(OsFiles(), path) == {("a", 0): 7}


def test_checkpoints_have_kafkas_format(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_offsets(OsFiles(), path, {("b", 1): 7, ("a", 0): 3})
    assert path.read_text() == "0\n2\na 0 3\nb 1 7\n"
    write_epochs(OsFiles(), path, [(0, 0), (3, 120)])
    assert path.read_text() == "0\n2\n0 0\n3 120\n"
    assert read_epochs(OsFiles(), path) == [(0, 0), (3, 120)]


@pytest.mark.parametrize("content", [None, ""])
def test_no_file_and_an_empty_one_hold_nothing(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "checkpoint"
    if content is not None:
        path.write_text(content)
    assert read_offsets(OsFiles(), path) == {}
    assert read_epochs(OsFiles(), path) == []


@pytest.mark.parametrize("line", ["1", "1 x", "x 1", "1 2 3", ""])
def test_damaged_epochs_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(f"0\n2\n0 0\n{line}\n")
    with pytest.raises(StorageError, match=f"damaged: '{line}' is not '<epoch> <start offset>'"):
        read_epochs(OsFiles(), path)


@pytest.mark.parametrize("line", ["-1 8", "1 -8", f"{2**31} 8", f"1 {2**63}"])
def test_impossible_epochs_and_offsets_are_damage(tmp_path: Path, line: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(f"0\n2\n0 0\n{line}\n")
    with pytest.raises(StorageError, match=f"damaged: '{line}' has a number that no epoch or offset can have"):
        read_epochs(OsFiles(), path)


@pytest.mark.parametrize("content", ["0\n", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na b 1\n", "\xff\n0\n"])
def test_damage_is_noticed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(StorageError, match=r"checkpoint is damaged: .*; restore it, or remove it"):
        read_offsets(OsFiles(), path)

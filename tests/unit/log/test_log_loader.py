"""Tests of the start after a crash or on a damaged disk."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.errors import CorruptBatchError, MillraceError, StorageError
from millrace.records import (
    BatchHeader,
    Compression,
    Record,
    build_entries,
    read_rows,
    scan_headers,
    verify_crc,
)
from millrace_broker.log import PartitionLog
from millrace_broker.log.validation import ReplicatedBatches

from .conftest import RefusingFiles

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
FIRST = "00000000000000000000"
OPTIONS = {"index.interval.bytes": 0, "segment.bytes": 700}


@pytest.fixture
def filled(open_log: Open, batch: Batch) -> int:
    """Fill two segments and a part, leave them as a crash does, and return the size of a batch."""
    log = open_log(OPTIONS)
    for n in range(20):
        log.append(batch([1000 + n]), leader_epoch=n // 8)
    assert len(log.segments) > 2
    log.release()
    return len(batch([1000]))


def offsets(log: PartitionLog) -> list[int]:
    found: list[int] = []
    while (at := found[-1] + 1 if found else log.log_start_offset) < log.log_end_offset:
        found += [header.base_offset for _, header in scan_headers(log.read(at, 10_000))]
    return found


def last_log(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def test_complete_log_is_kept(open_log: Open, filled: int) -> None:
    log = open_log(OPTIONS)
    assert offsets(log) == list(range(20))
    assert log.epochs.entries == ((0, 0), (1, 8), (2, 16))
    assert log.recovery_point == 20


@pytest.mark.parametrize("tail", [b"\x00", bytes(500), b"\xff" * 30, b"\xff" * 300])
def test_bytes_that_are_no_batch_are_truncated(open_log: Open, filled: int, tmp_path: Path, tail: bytes) -> None:
    path = last_log(tmp_path)
    sound = path.read_bytes()
    path.write_bytes(sound + tail)
    log = open_log(OPTIONS)
    assert log.log_end_offset == 20
    assert path.read_bytes() == sound


def test_incomplete_batch_is_cut_off_in_place(open_log: Open, filled: int, batch: Batch, tmp_path: Path) -> None:
    path = last_log(tmp_path)
    inode = path.stat().st_ino
    with path.open("ab") as file:
        file.write(batch([1020], base_offset=20)[:-1])
    assert open_log(OPTIONS).log_end_offset == 20
    assert path.stat().st_ino == inode


def test_bad_checksum_ends_the_log_and_swaps_in_a_new_file(open_log: Open, filled: int, tmp_path: Path) -> None:
    first = tmp_path / f"{FIRST}.log"
    with first.open("r+b") as file:
        file.seek(3 * filled - 1)
        file.write(b"!")
    with first.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        log = open_log(OPTIONS)
        assert len(mapped[:]) >= 7 * filled, "a reader's mapping keeps all its pages"
    assert offsets(log) == [0, 1]
    assert first.stat().st_size == 2 * filled
    assert [path.name for path in tmp_path.glob("*.log")] == [first.name]
    assert log.epochs.entries == ((0, 0),)


def test_damage_below_the_recovery_point_is_not_cut(open_log: Open, filled: int, tmp_path: Path) -> None:
    first = tmp_path / f"{FIRST}.log"
    before = first.read_bytes()
    with first.open("r+b") as file:
        file.seek(2 * filled + 16)
        file.write(b"\x07")  # the magic of the third batch
    with pytest.raises(StorageError, match=r"offset 2: .*but was synced up to offset 6: restore the file"):
        open_log(OPTIONS, recovery_point=6)
    assert first.stat().st_size == len(before)


@pytest.mark.parametrize("recovery_point", [0, 11, 21])
def test_gaps_in_the_active_segment_of_a_compacted_topic_are_kept(
    open_log: Open, batch: Batch, recovery_point: int
) -> None:
    options = {"cleanup.policy": "compact"}
    log = open_log(options)
    for offset in (0, 10, 20):
        log.append_replicated(ReplicatedBatches(batch([1000], base_offset=offset)))
    log.release()
    assert offsets(open_log(options, recovery_point=recovery_point)) == [0, 10, 20]


def test_offsets_that_go_back_end_the_log(open_log: Open, filled: int, tmp_path: Path) -> None:
    first = tmp_path / f"{FIRST}.log"
    with first.open("r+b") as file:
        file.seek(4 * filled + 7)
        file.write(b"\x02")
    assert offsets(open_log(OPTIONS)) == [0, 1, 2, 3]


def test_offsets_of_the_next_segment_end_the_log(open_log: Open, filled: int, tmp_path: Path) -> None:
    first = tmp_path / f"{FIRST}.log"
    with first.open("r+b") as file:
        file.seek(4 * filled + 6)
        file.write(b"\x01")
    assert offsets(open_log(OPTIONS)) == [0, 1, 2, 3]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "short", "noise", "empty"])
@pytest.mark.parametrize("was_clean", [True, False])
def test_damaged_indexes_never_give_wrong_answers(
    open_log: Open, filled: int, tmp_path: Path, suffix: str, damage: str, was_clean: bool
) -> None:
    open_log(OPTIONS).close()
    for path in tmp_path.glob(f"*{suffix}"):
        content = path.read_bytes()
        match damage:
            case "missing":
                path.unlink()
            case "short":
                path.write_bytes(content[:-3])
            case "noise":
                path.write_bytes(random.Random(3).randbytes(len(content)))
            case "empty":
                path.write_bytes(b"")
    log = open_log(OPTIONS, was_clean=was_clean)
    for n in range(20):
        assert next(scan_headers(log.read(n, 1)))[1].base_offset == n
        assert log.offset_for_time(1000 + n) == (n, 1000 + n)
    assert log.max_timestamp_offset() == (19, 1019)
    assert log.offset_for_time(1020) is None


def test_every_bit_of_an_index_may_flip(open_log: Open, filled: int, tmp_path: Path) -> None:
    open_log(OPTIONS).close()
    for suffix in (".index", ".timeindex"):
        path = tmp_path / f"{FIRST}{suffix}"
        sound = path.read_bytes()
        for bit in range(8 * len(sound)):
            damaged = bytearray(sound)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            log = open_log(OPTIONS, was_clean=True)
            for n in range(0, 9, 2):
                assert next(scan_headers(log.read(n, 1)))[1].base_offset == n
                assert log.offset_for_time(1000 + n) == (n, 1000 + n)
            log.release()


def test_a_damaged_log_is_reported_when_it_is_read(open_log: Open, filled: int, tmp_path: Path) -> None:
    open_log(OPTIONS).close()
    with (tmp_path / f"{FIRST}.log").open("r+b") as file:
        file.seek(3 * filled + 16)
        file.write(b"\x07")
    log = open_log(OPTIONS, was_clean=True)
    with pytest.raises(CorruptBatchError, match=r"00\.log"):
        log.read(3, 1)


def test_leftovers_are_removed(open_log: Open, filled: int, tmp_path: Path) -> None:
    leftovers = [f"{FIRST}.log.deleted", f"{FIRST}.log.cleaned", f"{FIRST}.index.tmp", "00000000000000009999.index"]
    for name in leftovers:
        (tmp_path / name).write_bytes(b"rest")
    assert offsets(open_log(OPTIONS)) == list(range(20))
    assert not [name for name in leftovers if (tmp_path / name).exists()]


def test_finished_swap_replaces_its_predecessors(open_log: Open, filled: int, tmp_path: Path) -> None:
    logs = sorted(tmp_path.glob("*.log"))
    merged = logs[0].read_bytes() + logs[1].read_bytes()
    (tmp_path / f"{FIRST}.log.swap").write_bytes(merged)
    log = open_log(OPTIONS)
    assert offsets(log) == list(range(20))
    assert sorted(tmp_path.glob("*.log")) == [logs[0], *logs[2:]]
    assert logs[0].read_bytes() == merged


def test_each_step_of_a_swap_is_durable_before_the_next(open_log: Open, filled: int, tmp_path: Path) -> None:
    first, second = sorted(tmp_path.glob("*.log"))[:2]
    (tmp_path / f"{FIRST}.log.swap").write_bytes(first.read_bytes() + second.read_bytes())
    files, seen = RefusingFiles(), []
    files.refuses = lambda operation, path: seen.append(f"{operation} {path.name}") or 0  # type: ignore[func-returns-value]
    open_log(OPTIONS, files=files)
    at, sync = seen.index(f"rename {FIRST}.log.swap"), f"sync_directory {tmp_path.name}"
    assert (seen[at - 1], seen[at + 1]) == (sync, sync)


def test_unfinished_swap_is_dropped(open_log: Open, filled: int, tmp_path: Path) -> None:
    (tmp_path / f"{FIRST}.log.swap").write_bytes(b"")
    (tmp_path / f"{FIRST}.log.cleaned").write_bytes(b"")
    assert offsets(open_log(OPTIONS)) == list(range(20))


@pytest.mark.parametrize(("cleaned_base", "is_finished"), [(2, False), (3, False), (4, True), (None, True)])
def test_a_swap_counts_unless_an_earlier_or_the_same_cleaned_log_is_unfinished(
    open_log: Open, batch: Batch, tmp_path: Path, cleaned_base: int | None, is_finished: bool
) -> None:
    log = open_log()
    for n in range(6):
        log.append(batch([1000 + n]))
        if n in (1, 2, 3, 4):
            log.roll()
    log.close()
    swap = batch([2003], base_offset=3) + batch([2004], base_offset=4)
    (tmp_path / f"{3:020d}.log.swap").write_bytes(swap)
    if cleaned_base is not None:
        (tmp_path / f"{cleaned_base:020d}.log.cleaned").write_bytes(b"")
    log = open_log()
    assert [segment.base_offset for segment in log.segments] == ([0, 2, 3, 5] if is_finished else [0, 2, 3, 4, 5])
    assert log.offset_for_time(2000) == ((3, 2003) if is_finished else None)
    assert offsets(log) == list(range(6))
    assert not [*tmp_path.glob("*.swap"), *tmp_path.glob("*.cleaned")]


def test_a_swap_without_a_log_is_removed(open_log: Open, filled: int, tmp_path: Path) -> None:
    before = (tmp_path / f"{FIRST}.index").read_bytes()
    for name in (f"{FIRST}.index.swap", "notes.swap", f"{FIRST}.log.swap.swap"):
        (tmp_path / name).write_bytes(b"rest")
    assert offsets(open_log(OPTIONS)) == list(range(20))
    assert not list(tmp_path.glob("*.swap"))
    assert (tmp_path / f"{FIRST}.index").read_bytes()[: len(before)] == before


def test_indexes_of_a_swap_take_their_place_too(open_log: Open, filled: int, tmp_path: Path) -> None:
    open_log(OPTIONS).close()
    first = {suffix: tmp_path / f"{FIRST}{suffix}" for suffix in (".log", ".index", ".timeindex")}
    contents = {suffix: path.read_bytes() for suffix, path in first.items()}
    for suffix, path in first.items():
        path.rename(tmp_path / f"{FIRST}{suffix}.swap")
        path.write_bytes(b"old" if suffix != ".log" else contents[suffix][:filled])
    log = open_log(OPTIONS, was_clean=True)
    assert offsets(log) == list(range(20))
    assert {suffix: path.read_bytes() for suffix, path in first.items()} == contents


@pytest.mark.parametrize("recovery_point", [19, 20, 21])
def test_a_closed_log_ends_at_its_recovery_point(
    open_log: Open, filled: int, caplog: pytest.LogCaptureFixture, recovery_point: int
) -> None:
    open_log(OPTIONS).close()
    caplog.clear()
    if recovery_point > 20:
        with pytest.raises(StorageError, match=r"ends at offset 20, but was synced up to offset 21: restore its files"):
            open_log(OPTIONS, was_clean=True, recovery_point=recovery_point)
    else:
        assert open_log(OPTIONS, was_clean=True, recovery_point=recovery_point).log_end_offset == 20
    is_unchanged = recovery_point == 20
    assert (f"was closed at offset {recovery_point}, but ends at 20" in caplog.text) is not is_unchanged


def test_a_closed_log_that_is_damaged_is_recovered_if_it_is_known_what_was_synced(
    open_log: Open, filled: int, tmp_path: Path
) -> None:
    open_log(OPTIONS).close()
    path = last_log(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[-filled + 16] = 7  # the magic of the last batch
    path.write_bytes(damaged)
    with pytest.raises(CorruptBatchError):
        open_log(OPTIONS, was_clean=True)
    with pytest.raises(StorageError, match=r"offset 19: .*but was synced up to offset 20"):
        open_log(OPTIONS, was_clean=True, recovery_point=20)
    assert open_log(OPTIONS, was_clean=True, recovery_point=19).log_end_offset == 19


def test_records_that_were_added_after_a_clean_stop_are_checked(open_log: Open, filled: int, tmp_path: Path) -> None:
    open_log(OPTIONS).close()
    path = last_log(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert open_log(OPTIONS, was_clean=True, recovery_point=19).log_end_offset == 19


def test_a_log_may_start_at_its_end(open_log: Open, filled: int) -> None:
    log = open_log(OPTIONS, log_start_offset=20)
    assert (log.log_start_offset, log.log_end_offset, log.first_base_offset) == (20, 20, 0)
    assert log.epochs.entries == ((2, 20),)


@pytest.mark.parametrize(("starts_remotely", "log_start_offset"), [(False, 7), (True, 3)])
def test_a_log_may_start_in_the_remote_store(
    open_log: Open, batch: Batch, starts_remotely: bool, log_start_offset: int
) -> None:
    log = open_log()
    log.begin_at(7)
    log.append(batch([1000]))
    log.close()
    log = open_log(was_clean=True, log_start_offset=3, starts_remotely=starts_remotely)
    assert (log.log_start_offset, log.first_base_offset, log.log_end_offset) == (log_start_offset, 7, 8)


def test_epochs_after_the_end_are_forgotten_durably(open_log: Open, filled: int, tmp_path: Path) -> None:
    path = last_log(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "leader-epoch-checkpoint.crc32c").unlink()
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n4\n0 0\n1 8\n2 18\n3 19\n")
    assert open_log(OPTIONS).epochs.entries == ((0, 0), (1, 8), (2, 18))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n0 0\n1 8\n2 18\n"


def test_damaged_epochs_are_read_from_the_batches(open_log: Open, filled: int, tmp_path: Path) -> None:
    for text in ("0\n1\nnothing\n", "0\n1\n1 x\n", "0\n1\n-1 0\n", "0\n1\n0 -5\n"):
        (tmp_path / "leader-epoch-checkpoint.crc32c").unlink(missing_ok=True)
        (tmp_path / "leader-epoch-checkpoint").write_text(text)
        log = open_log(OPTIONS)
        assert log.epochs.entries == ((0, 0), (1, 8), (2, 16))
        log.release()


def test_lost_epochs_are_read_from_the_batches(open_log: Open, filled: int, tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").unlink()
    assert open_log(OPTIONS).epochs.entries == ((0, 0), (1, 8), (2, 16))


def test_a_log_that_lost_all_records_before_its_start_begins_empty_there(
    open_log: Open, filled: int, tmp_path: Path
) -> None:
    for path in tmp_path.glob("*.log"):
        path.write_bytes(b"")
    log = open_log(OPTIONS, log_start_offset=15)
    assert (log.log_start_offset, log.log_end_offset) == (15, 15)
    assert [path.name for path in tmp_path.glob("*.log")] == ["00000000000000000015.log"]


def test_log_start_inside_a_segment_is_kept(open_log: Open, filled: int) -> None:
    log = open_log(OPTIONS, log_start_offset=5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 20)
    assert log.offset_for_time(0) == (5, 1005)
    with pytest.raises(MillraceError):
        log.read(4, 1)


def test_any_bit_of_the_log_may_flip_in_a_crash(
    open_log: Open, filled: int, batch: Batch, tmp_path: Path, seed: int
) -> None:
    # Recovery keeps a prefix of the log. No record is changed or added.
    path = last_log(tmp_path)
    sound, first = path.read_bytes(), int(path.name[:20])
    choose = random.Random(seed)
    for _ in range(60):
        bit = choose.randrange(8 * len(sound))
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        log = open_log(OPTIONS, recovery_point=first)
        kept = log.log_end_offset - first
        in_epoch = 12 <= bit // 8 % filled < 16  # the leader epoch is outside the checksum
        assert kept == (bit // 8 // filled if not in_epoch else (len(sound) // filled))
        log.release()
        path.write_bytes(sound)


@pytest.mark.parametrize(("number", "recovery_point"), [(0, None), (0, 2), (1, None)])
def test_a_lost_end_of_a_segment_is_a_gap(
    open_log: Open,
    filled: int,
    tmp_path: Path,
    number: int,
    recovery_point: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # One segment lost its end and the next one is whole. Recovery keeps the next one.
    cut, following = sorted(tmp_path.glob("*.log"))[number : number + 2]
    base, next_base = int(cut.stem), int(following.stem)
    cut.write_bytes(cut.read_bytes()[: 3 * filled])
    log = open_log(OPTIONS, recovery_point=recovery_point)
    assert offsets(log) == [*range(base + 3), *range(next_base, 20)]
    assert f"offsets {base + 3}..{next_base - 1} are missing" in caplog.text


def test_indexes_of_a_segment_sealed_after_its_sync_are_not_trusted(
    open_log: Open, batch: Batch, tmp_path: Path
) -> None:
    log = open_log(OPTIONS)
    for n in range(3):
        log.append(batch([1000 + n]))
    log.flush()
    log.roll()
    log.release()
    (tmp_path / f"{FIRST}.timeindex").write_bytes(bytes(120))
    assert open_log(OPTIONS, recovery_point=3).offset_for_time(1001) == (1, 1001)


def test_producers_of_lost_batches_are_forgotten(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    # A snapshot is synced when it is written, but the batches before it may have been lost.
    log = open_log()
    sent = [batch([n], producer_id=7, producer_epoch=0, base_sequence=n) for n in range(3)]
    for each in sent:
        log.append(each)
    log.roll()
    log.release()
    first = tmp_path / f"{FIRST}.log"
    first.write_bytes(first.read_bytes()[: len(sent[0])])
    log = open_log(recovery_point=0)
    assert [(entry.producer_id, entry.last_sequence) for entry in log.producers] == [(7, 0)]
    result = log.append(sent[1])
    assert (result.base_offset, result.is_duplicate) == (3, False)


def test_epochs_of_records_that_came_back_are_read_from_the_batches(
    open_log: Open, filled: int, tmp_path: Path
) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n2 17\n")
    assert open_log(OPTIONS).epochs.entries == ((0, 0), (1, 8), (2, 16))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_a_log_of_messages_is_recovered_read_and_continues_in_batches(
    open_log: Open, batch: Batch, tmp_path: Path, magic: int, compression: Compression
) -> None:
    written = [
        Record(key=b"%d" % n, value=b"" if n % 2 else b"v" * n, timestamp_ms=1000 + n, offset=n) for n in range(30)
    ]
    data = b"".join(
        build_entries(written[n : n + 3], magic=magic, compression=compression) for n in range(0, len(written), 3)
    )
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(data + data[:20])
    options = {"index.interval.bytes": 100, "segment.bytes": len(data) + 500}
    log = open_log(options)
    assert log.log_end_offset == 30
    assert path.read_bytes() == data
    assert log.append(batch([2000])).base_offset == 30
    log.close()

    log = open_log(options, was_clean=True)
    for offset in range(31):
        position, header = next(scan_headers(log.read(offset, 1)))
        assert position == 0
        assert header.base_offset <= offset <= header.last_offset
    found = [record for _, record in read_records(log)]
    expected_time = {0: -1, 1: None}[magic]
    assert [(r.offset, r.key, r.value) for r in found[:30]] == [(r.offset, r.key, r.value) for r in written]
    assert all(r.timestamp_ms == (1000 + r.offset if expected_time is None else -1) for r in found[:30])
    if magic == 1:
        assert log.offset_for_time(1011) == (11, 1011)
    assert log.max_timestamp_offset() == (30, 2000)
    extents = log.locate(0, 31)
    assert [extent.has_messages for extent in extents] == [True]


def read_records(log: PartitionLog) -> Iterator[tuple[BatchHeader, Record]]:
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read(at, 500)
        for position, header in scan_headers(data):
            verify_crc(data, position, header)
            yield from ((header, record) for record in read_rows(data, position, header))
            at = header.next_offset


def test_a_damaged_message_ends_the_log(open_log: Open, tmp_path: Path) -> None:
    written = [Record(key=b"k", value=b"v", timestamp_ms=n, offset=n) for n in range(5)]
    data = bytearray(build_entries(written, magic=1))
    size = len(data) // 5
    data[3 * size + 30] ^= 1
    (tmp_path / f"{FIRST}.log").write_bytes(data)
    assert open_log({}).log_end_offset == 3
    (tmp_path / f"{FIRST}.log").write_bytes(data)
    with pytest.raises(StorageError, match="was synced up to offset 5"):
        open_log({}, recovery_point=5)

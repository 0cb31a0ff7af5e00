"""Tests of crashes at every call to the remote store.

The calls copy, expire and delete. No record is lost, and no object is orphaned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import StorageError
from millrace.records import scan_headers
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.remote_log_manager import RemoteLogManager
from millrace_broker.log.tiered.deletions import REMOTE_DELETIONS, RemoteDeletions
from millrace_broker.log.tiered.names import parse_manifest_name, parse_object_name

MakeLog = Callable[..., PartitionLog]
Settle = Callable[[RemoteLogManager], None]


def killed_in_turn(store: Any) -> Iterator[int]:
    """Kill the process at the first call, then at the second one, and so on, until it survives."""
    number = 0
    while True:
        store.calls.clear()
        store.kills_at = number
        yield number
        if len(store.calls) <= number:
            return
        number += 1


def everything(log: PartitionLog) -> list[int]:
    offset, offsets = log.log_start_offset, []
    while offset < log.high_watermark:
        headers = [header for _, header in scan_headers(log.read(offset, 1000))]
        offsets += [number for header in headers for number in range(header.base_offset, header.next_offset)]
        offset = headers[-1].next_offset
    return offsets


def check_only_complete_copies(directory: Path) -> None:
    names = [path.name for path in directory.rglob("*") if path.is_file()]
    complete = {parsed.copy for name in names if (parsed := parse_manifest_name(name)) is not None}
    copies = {parsed[0] for name in names if (parsed := parse_object_name(name)) is not None}
    assert copies == complete
    assert len({copy.base_offset for copy in complete}) == len(complete), "one copy for each segment"


def work(manager: RemoteLogManager, settle: Settle) -> None:
    """Work until the process is killed or no work is left."""
    try:
        settle(manager)
    except BaseException as death:
        if type(death).__name__ != "Killed":
            raise


def test_a_crash_while_copying_loses_nothing(
    tiered_log: MakeLog,
    make_manager: Callable[..., RemoteLogManager],
    store: Any,
    settle: Settle,
    remote_directory: Path,
) -> None:
    log = tiered_log(segments=2, is_attached=False, local_retention_bytes="1")
    log.config = TopicConfig.load(log.config.options())
    kept_on_disk: list[int] = [segment.base_offset for segment in log.segments]
    for _ in killed_in_turn(store):
        manager = make_manager()
        manager.attach(log)
        work(manager, settle)
        store.kills_at = None
        assert log.remote is not None
        complete = {
            parsed.end_offset
            for path in remote_directory.rglob("*.manifest")
            if (parsed := parse_manifest_name(path.name)) is not None
        }
        assert log.remote.end_offset <= max(complete, default=0), "an object without a manifest does not count"
        assert [segment.base_offset for segment in log.segments] == kept_on_disk

        restarted = make_manager()
        restarted.attach(log)
        settle(restarted)
        assert log.remote.end_offset == 12
        assert everything(log) == list(range(18))
        check_only_complete_copies(remote_directory)
        store.remove_folder(log.remote.folder)


def test_a_crash_while_expiring_leaves_no_object(
    tiered_log: MakeLog,
    make_manager: Callable[..., RemoteLogManager],
    store: Any,
    settle: Settle,
    remote_directory: Path,
    tmp_path: Path,
    clock: Any,
) -> None:
    log = tiered_log(segments=3, is_attached=False)
    for _ in killed_in_turn(store):
        store.kills_at, kills_at = None, store.kills_at
        manager = make_manager()
        log.remote = None
        manager.attach(log)
        settle(manager)
        store.calls.clear()
        store.kills_at = kills_at
        started_at = log.log_start_offset
        assert log.remote is not None
        # The start offset before. The first two copies are to be deleted.
        log._offsets.start = 12
        work(manager, settle)
        store.kills_at = None

        restarted = make_manager()
        restarted.attach(log)
        settle(restarted)
        assert [each.base_offset for each in log.remote.segments] == [12]
        check_only_complete_copies(remote_directory)
        log._offsets.start = started_at
        store.remove_folder(log.remote.folder)


def test_failures_at_every_call_are_repaired_by_the_retry(
    tiered_log: MakeLog,
    manager: RemoteLogManager,
    store: Any,
    settle: Settle,
    remote_directory: Path,
    clock: Any,
) -> None:
    # There is no restart. The retry removes the objects of a failed attempt and uses those that it had published.
    log = tiered_log(segments=2)
    assert log.remote is not None
    number = 0
    while True:
        store.calls.clear()
        store.fails_at = number
        settle(manager)
        store.fails_at = None
        settle(manager)
        settle(manager)
        assert log.remote.end_offset == 12
        check_only_complete_copies(remote_directory)
        if len(store.calls) <= number:
            break
        number += 1
        store.remove_folder(log.remote.folder)
        log.remote.must_list = True
    assert number > 10


def test_a_lost_answer_to_publishing_does_not_copy_twice(
    tiered_log: MakeLog, manager: RemoteLogManager, store: Any, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=1)
    publish = store.publish

    def published_and_then_lost(folder: str, name: str, data: bytes) -> None:
        publish(folder, name, data)
        store.publish = publish
        store._call("answer")

    store.publish = published_and_then_lost
    store.is_away = False
    store.fails_at = None
    original = store._call

    def lose(what: str, tears: Callable[[], None] = lambda: None) -> None:
        if what == "answer":
            store.is_away = True
        original(what, tears)

    store._call = lose
    settle(manager)
    store.is_away = False
    settle(manager)
    assert log.remote is not None
    assert log.remote.end_offset == 6
    assert sum(call.startswith("publish") for call in store.calls) == 1
    check_only_complete_copies(remote_directory)


def test_deleted_partitions_leave_the_store_also_after_a_restart(
    tiered_log: MakeLog,
    make_manager: Callable[..., RemoteLogManager],
    store: Any,
    settle: Settle,
    remote_directory: Path,
    tmp_path: Path,
) -> None:
    log = tiered_log(segments=2, is_attached=False)
    manager = make_manager()
    manager.attach(log)
    settle(manager)
    store.is_away = True
    with manager.paused((log.topic, log.partition)):
        manager.delete(log)
    settle(manager)
    assert list(remote_directory.iterdir()), "the store did not answer"
    assert "orders-3-" in (tmp_path / REMOTE_DELETIONS).read_text()
    store.is_away = False
    settle(make_manager())
    assert list(remote_directory.iterdir()) == []
    assert (tmp_path / REMOTE_DELETIONS).read_text() == "0\n0\n"


def test_a_damaged_list_of_deletions_is_refused(tmp_path: Path) -> None:
    (tmp_path / REMOTE_DELETIONS).write_text("0\n2\nonly-one\n")
    with pytest.raises(StorageError, match="is damaged"):
        RemoteDeletions(OsFiles(), tmp_path)


def test_a_disk_that_lost_what_was_copied_is_noticed(
    tiered_log: MakeLog,
    make_manager: Callable[..., RemoteLogManager],
    settle: Settle,
    tmp_path: Path,
    clock: Any,
) -> None:
    log = tiered_log(segments=2, is_attached=False)
    manager = make_manager()
    manager.attach(log)
    settle(manager)
    log.close()
    for path in (tmp_path / "orders-3").glob("0000000000000000000[6-9]*"):
        path.unlink()
    for path in (tmp_path / "orders-3").glob("0000000000000000001*"):
        path.unlink()
    reopened = PartitionLog(
        topic=log.topic,
        topic_id=log.topic_id,
        partition=log.partition,
        directory=log.directory,
        config=TopicConfig.load(log.config.options() | {"local.retention.bytes": "0"}),
        files=OsFiles(),
        clock=clock,
    )
    assert reopened.log_end_offset == 6
    restarted = make_manager()
    restarted.attach(reopened)
    settle(restarted)
    assert reopened.remote is not None
    assert "the disk has lost records" in (reopened.remote.problem or "")
    assert reopened.apply_retention() == 0, "the object stays, because it may be the only copy"

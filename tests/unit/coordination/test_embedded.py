from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from millrace.coordination import (
    ANY_VERSION,
    Create,
    Delete,
    EmbeddedStore,
    NodeStat,
    Operation,
    Write,
)
from millrace.coordination.interface import CoordinationError
from millrace.errors import EnvironmentProblemError, StorageError


def _dump(store: EmbeddedStore) -> dict[str, tuple[bytes, NodeStat]]:
    session = store.connect()
    found: dict[str, tuple[bytes, NodeStat]] = {}
    pending = ["/"]
    while pending:
        path = pending.pop()
        found[path] = session.get(path)
        pending += [f"{path.rstrip('/')}/{name}" for name in session.children(path)]
    session.close()
    return found


def test_everything_but_ephemerals_is_there_after_reopening(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "nodes")
    session = store.connect()
    session.create("/a", b"\0\xff")
    session.create("/a/n-", sequential=True)
    session.set("/a", b"two")
    session.create("/mine", ephemeral=True)
    session_id = session.session_id
    before = _dump(store)
    store.close()

    again = EmbeddedStore(tmp_path / "nodes")
    after = _dump(again)
    assert set(before) - set(after) == {"/mine"}
    assert after["/a"] == before["/a"]
    fresh = again.connect()
    assert fresh.session_id > session_id
    assert fresh.create("/a/n-", sequential=True) == "/a/n-0000000001"
    again.close()


def test_ephemerals_of_a_killed_process_are_gone_and_the_rest_is_there(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from millrace.coordination import EmbeddedStore\n"
        "session = EmbeddedStore(Path(sys.argv[1])).connect()\n"
        "session.create('/kept', b'1'); session.create('/mine', ephemeral=True); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "nodes")], check=False)
    store = EmbeddedStore(tmp_path / "nodes")
    assert store.connect().children("/") == ["kept"]
    store.close()


def test_a_second_process_is_refused_with_the_remedy(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "nodes")
    with pytest.raises(EnvironmentProblemError, match=r"in use by another broker.*log\.dirs"):
        EmbeddedStore(tmp_path / "nodes")
    store.connect().create("/still-usable")
    store.close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("not a database " * 100)
    with pytest.raises(EnvironmentProblemError, match="nodes"):
        EmbeddedStore(tmp_path / "nodes")


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "nodes")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(EnvironmentProblemError, match="format 99"):
        EmbeddedStore(tmp_path / "nodes")


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match="cannot"):
        EmbeddedStore(tmp_path / "missing" / "nodes")


def test_a_change_that_cannot_be_saved_is_not_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EmbeddedStore(tmp_path / "nodes")
    session = store.connect()
    session.create("/a", b"before")
    events: list[object] = []
    session.get("/a", events.append)

    def refuse(*_: object) -> None:
        raise StorageError("the disk is full")

    assert store._file is not None
    monkeypatch.setattr(store._file, "save", refuse)
    with pytest.raises(StorageError, match="full"):
        session.set("/a", b"after")
    monkeypatch.undo()
    assert session.get("/a")[0] == b"before"
    assert events == []
    with pytest.raises(StorageError, match="restart the broker"):
        session.set("/a", b"after")
    store.close()


def test_many_threads_make_one_sequence(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "nodes")
    store.connect().create("/queue")
    paths: list[str] = []

    def work() -> None:
        session = store.connect()
        paths.extend(session.create("/queue/", sequential=True) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(paths) == [f"/queue/{number:010d}" for number in range(50)]
    store.close()


_PATHS = st.sampled_from(["/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f"])
_OPERATIONS = st.one_of(
    st.builds(Create, _PATHS, st.binary(max_size=3), st.booleans(), st.booleans()),
    st.builds(Write, _PATHS, st.binary(max_size=3), st.sampled_from([ANY_VERSION, 0, 1])),
    st.builds(Delete, _PATHS, st.sampled_from([ANY_VERSION, 0, 1])),
)


class _FileEqualsMemory(RuleBasedStateMachine):
    """A model test of a file-backed store, reopened at any time.

    Apart from ephemeral nodes it equals a store that was never closed.
    """

    path: Path

    def __init__(self) -> None:
        super().__init__()
        self.path.unlink(missing_ok=True)
        self.memory = EmbeddedStore(now_ms=lambda: 7)
        self.file = EmbeddedStore(self.path, now_ms=lambda: 7)
        self.in_memory, self.in_file = self.memory.connect(), self.file.connect()

    @rule(operations=st.lists(_OPERATIONS, min_size=1, max_size=4))
    def change(self, operations: list[Operation]) -> None:
        outcomes = []
        for session in (self.in_memory, self.in_file):
            try:
                outcomes.append([r.version if isinstance(r, NodeStat) else r for r in session.multi(operations)])
            except CoordinationError as error:
                outcomes.append([type(error).__name__])
        assert outcomes[0] == outcomes[1]

    @rule()
    def reopen(self) -> None:
        self.in_memory.close()
        self.in_memory = self.memory.connect()
        self.file.close()
        self.file = EmbeddedStore(self.path, now_ms=lambda: 7)
        self.in_file = self.file.connect()

    @invariant()
    def same(self) -> None:
        def comparable(store: EmbeddedStore) -> dict[str, tuple[bytes, int, int, int, bool]]:
            return {
                path: (data, stat.version, stat.children_version, stat.children, bool(stat.ephemeral_owner))
                for path, (data, stat) in _dump(store).items()
            }

        assert comparable(self.memory) == comparable(self.file)

    def teardown(self) -> None:
        self.file.close()


def test_a_reopened_file_holds_what_memory_holds(tmp_path: Path) -> None:
    _FileEqualsMemory.path = tmp_path / "nodes"
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        _FileEqualsMemory, settings=settings(max_examples=25, stateful_step_count=20, deadline=None)
    )

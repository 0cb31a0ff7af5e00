"""The judge of mutants.

The judge is a pytest session that forks a process for each mutant. The session loads the tests once. A forked process
gives the mutated function its new code and runs the tests that cover the changed lines, until one fails. Tests that
killed other mutants come first, and then the fastest. Coverage is recorded before that, in forked processes too, so
that the parent has no threads. Hypothesis draws from fixed seeds and does not shrink, so that a verdict is the same
each time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import random
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings

from .mutants import Mutant, install, live_functions
from .scope import ROOT

BUDGET_SECONDS = 30.0
"""Of all tests that cover a line, the fastest ones judge. Together they take at most this time without a mutant."""
MEMORY_BYTES = 6 << 30
RECORDING_SECONDS_MAX = 1200
"""A test that takes longer while its coverage is recorded is stuck."""


class Verdict(StrEnum):
    """The verdict on a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    UNCOVERED = "uncovered"


@dataclass(frozen=True)
class Judgement:
    """A verdict and the test that killed the mutant. ``is_kept`` means that it is of an earlier run (``kills``)."""

    verdict: Verdict
    test: str = ""
    seconds: float = 0.0
    is_kept: bool = False


@dataclass(kw_only=True)
class Coverage:
    """The passing tests, with their durations and covered lines.

    The lines of each file are bits of a number.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    lines: dict[str, dict[str, int]] = field(default_factory=dict)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that cover a changed line, or else the beginning of its statement."""
        lines = self.lines.get(mutant.path, {})
        first, last = mutant.lines
        wanted = ((1 << (last - first + 1)) - 1) << first
        found = [test for test, bits in lines.items() if bits & wanted]
        return found or [test for test, bits in lines.items() if bits >> mutant.statement & 1]


@dataclass(eq=False)
class _Child:
    """A forked process.

    A child has its reported result and the directory of its tests.
    """

    pid: int
    reads: int
    directory: Path
    started: float
    done: Callable[[int, str, float], None]


class Judge:
    """A pytest plugin. It judges ``mutants`` in their order, and calls ``judged`` for each."""

    def __init__(
        self,
        mutants: Sequence[tuple[str, Mutant | None]],
        judged: Callable[[str, Judgement], None],
        *,
        coverage_file: Path,
        files: Sequence[str],
        workers: int,
        say: Callable[[str], None],
    ) -> None:
        self._mutants = mutants
        self._judged = judged
        self._coverage_file: Final = coverage_file
        self._files = files
        self._workers = workers
        self._say = say
        self._tell = -1
        self._ends_at_failure = False
        self._failed: list[str] = []
        self._killers: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Take fixed examples, and exactly the number that tests set."""
        settings.register_profile(
            "judging",
            settings.get_profile("millrace"),
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("judging")
        for path in self._files:
            import_module(".".join(Path(path).with_suffix("").parts[1:]))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge all mutants, in place of running the tests."""
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        if pools := thread_pools():
            raise session.Interrupted(
                f"threads of {', '.join(pools)} are running: forked processes would wait for them for ever; "
                "let no test module collect a Polars frame on import (py-spy or --collect-only of a folder finds it)"
            )
        items = {item.nodeid: item for item in session.items}
        covered = self._coverage(session, items)
        functions = live_functions(str(ROOT / path) for path in self._files)
        gc.collect()
        gc.freeze()
        waiting = iter(self._mutants)
        self._run_all(self._child_of(session, items, covered, functions, *each) for each in waiting)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the failure in a forked process, and end the process if a mutant is judged."""
        if report.failed:
            self._failed.append(report.nodeid)
            if self._ends_at_failure:
                os.write(self._tell, report.nodeid.encode()[:4000])
                os._exit(1)

    # --- coverage ----------------------------------------------------------------------------------------------

    def _coverage(self, session: pytest.Session, items: dict[str, pytest.Item]) -> Coverage:
        if self._coverage_file.exists():
            return pickle.loads(self._coverage_file.read_bytes())  # type: ignore[no-any-return]
        self._say(f"recording which lines {len(items)} tests are in")
        parts: list[list[str]] = [[] for _ in range(self._workers)]
        for number, test in enumerate(items):
            parts[number * self._workers * 8 // len(items) % self._workers].append(test)
        whole = Coverage()
        with tempfile.TemporaryDirectory() as directory:
            results = [Path(directory) / str(number) for number in range(len(parts))]

            def done(status: int, said: str, seconds: float) -> None:
                if status:
                    last = [path.read_text() for path in Path(directory).glob("*.test")]
                    raise RuntimeError(f"recording the coverage ended with status {status}: {said}; in {last}")

            def child(part: list[str], result: Path) -> _Child:
                return self._fork(session, lambda: self._record([items[test] for test in part], result), done, 0)

            self._run_all(child(part, result) for part, result in zip(parts, results, strict=True))
            for result in results:
                recorded: Coverage = pickle.loads(result.read_bytes())
                whole.seconds |= recorded.seconds
                whole.failed += recorded.failed
                for path, tests in recorded.lines.items():
                    whole.lines.setdefault(path, {}).update(tests)
        for test in whole.failed:
            self._say(f"fails without a mutant, does not judge: {test}")
        self._coverage_file.write_bytes(pickle.dumps(whole))
        return whole

    def _record(self, items: list[pytest.Item], result: Path) -> None:
        import coverage

        files = [str(ROOT / path) for path in self._files]
        recording = coverage.Coverage(data_file=None, config_file=False, include=files, messages=False)
        recording.start()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        found = Coverage()
        for item, following in _with_next(items):
            recording.switch_context(item.nodeid)
            result.with_suffix(".test").write_text(item.nodeid)
            signal.setitimer(signal.ITIMER_REAL, RECORDING_SECONDS_MAX)
            started = time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            found.seconds[item.nodeid] = time.perf_counter() - started
        signal.setitimer(signal.ITIMER_REAL, 0)
        recording.stop()
        found.failed = sorted(set(self._failed))
        data = recording.get_data()
        for file in data.measured_files():
            tests = found.lines.setdefault(str(Path(file).relative_to(ROOT)), {})
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in contexts:
                    if test and test not in found.failed:
                        tests[test] = tests.get(test, 0) | 1 << line
        result.write_bytes(pickle.dumps(found))

    # --- judging -----------------------------------------------------------------------------------------------

    def _child_of(
        self,
        session: pytest.Session,
        items: dict[str, pytest.Item],
        covered: Coverage,
        functions: dict[Any, Any],
        name: str,
        mutant: Mutant | None,
    ) -> _Child | None:
        if mutant is None:  # a control mutant, which changes nothing
            tests = random.Random(name).sample(sorted(covered.seconds), min(20, len(covered.seconds)))
        else:
            tests = covered.tests_of(mutant)
        tests = [test for test in tests if test in items and test not in covered.failed]
        if not tests:
            self._judged(name, Judgement(Verdict.UNCOVERED))
            return None
        tests.sort(key=lambda test: (-self._killers[test], covered.seconds[test]))
        chosen, total = [], 0.0
        for test in tests:
            if chosen and total + covered.seconds[test] > BUDGET_SECONDS:
                continue
            chosen.append(test)
            total += covered.seconds[test]

        def done(status: int, said: str, seconds: float) -> None:
            if os.WIFSIGNALED(status):
                verdict = Verdict.TIMEOUT if os.WTERMSIG(status) in _TIMED_OUT else Verdict.KILLED
            else:
                verdict = Verdict.KILLED if status else Verdict.SURVIVED
            if verdict is Verdict.KILLED:
                self._killers[said] += 1
            self._judged(name, Judgement(verdict, said, round(seconds, 2)))

        def judge() -> None:
            self._ends_at_failure = True
            if mutant is not None:
                try:
                    install(ROOT, mutant, functions)
                except (ValueError, SyntaxError) as error:
                    os.write(self._tell, f"not a program: {error}".encode())
                    os._exit(1)
            resource.setrlimit(resource.RLIMIT_AS, (_memory_bytes() + MEMORY_BYTES,) * 2)
            for item, following in _with_next([items[test] for test in chosen]):
                _limit(covered.seconds[item.nodeid])
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

        return self._fork(session, judge, done, 120 + 10 * total)

    def _fork(
        self, session: pytest.Session, run: Callable[[], None], done: Callable[[int, str, float], None], limit: float
    ) -> _Child:
        directory = Path(tempfile.mkdtemp(prefix="mutant-"))
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(nothing, number)
                self._tell = writes
                session.config.pluginmanager.unregister(name="terminalreporter")
                session.config._tmp_path_factory._basetemp = directory  # type: ignore[attr-defined]
                run()
                status = 0
            except BaseException as error:  # noqa: BLE001 - a forked process must never come back into the parent's code
                os.write(writes, repr(error).encode()[:4000])
            finally:
                os._exit(status)
        os.close(writes)
        return _Child(pid, reads, directory, time.monotonic(), done)

    def _run_all(self, children: Iterator[_Child | None]) -> None:
        running: list[_Child] = []
        is_more = True
        while is_more or running:
            while is_more and len(running) < self._workers:
                try:
                    child = next(children)
                except StopIteration:
                    is_more = False
                    break
                if child is not None:
                    running.append(child)
            for child in list(running):
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    running.remove(child)
                    self._end(child, status)
            time.sleep(0.01)

    def _end(self, child: _Child, status: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # processes that its tests have started
        os.set_blocking(child.reads, False)
        try:
            said = os.read(child.reads, 5000).decode(errors="replace")
        except BlockingIOError:
            said = ""
        os.close(child.reads)
        shutil.rmtree(child.directory, ignore_errors=True)
        child.done(status, said, time.monotonic() - child.started)


_TIMED_OUT = (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL)


def _limit(seconds: float) -> None:
    """Limit the next test's CPU time to a multiple of its time without a mutant.

    Other processes do not use CPU time of this limit.
    """
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + 5 + 5 * seconds) + 1, most))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 40 + 20 * seconds)


def thread_pools() -> list[str]:
    """Return the native thread pools of this process that do not survive a fork."""
    names = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    return sorted(name for name in names if name.startswith(("polars-0", "tokio")))


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _with_next(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


def run(judge: Judge, tests: Sequence[str], seed: int) -> int:
    """Load the tests, let them judge, and return pytest's exit code."""
    options = ["-q", "-m", "not spark", "-o", "timeout=0", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis is loaded already
    options += [f"--randomly-seed={seed}", "--randomly-dont-reorganize", f"--rootdir={ROOT}"]
    return int(pytest.main([*options, *tests], plugins=[judge]))

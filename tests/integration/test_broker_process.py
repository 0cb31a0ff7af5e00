"""Tests of the broker as a process.

The tests cover its command, its start, its end and kill -9.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from millrace import errors
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from ..ports import free_port
from .waiting import AN_HOUR_MS, STALL_S, eventually, run_to_end

MILLRACE = Path(sys.executable).with_name("millrace")


class Process:
    """``millrace broker`` on a free port. A process that still runs is killed at the end of the test."""

    def __init__(self, data_dir: Path, *arguments: str, given: IO[Any] | int | None = None) -> None:
        command = [str(MILLRACE), "broker", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *arguments]
        self.errors = data_dir.with_suffix(".stderr")
        with self.errors.open("a") as log:
            self._process = subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        self.line = self._process.stdout.readline()
        self.address = self.line.rpartition(" ")[2].strip()

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self._process.wait(STALL_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def kill(self) -> None:
        """Kill the process, if it still runs, and close its output."""
        self._process.kill()
        self.wait()

    def private_bytes(self) -> int:
        """Return the private memory of the process.

        Mapped files do not count, because the kernel can drop their pages.
        """
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Private_Dirty:"))

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*arguments: str, data_dir: Path = tmp_path / "data", given: IO[Any] | int | None = None) -> Process:
        started.append(Process(data_dir, *arguments, given=given))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_prints_its_address_answers_and_ends_cleanly_on_a_signal(
    start: Callable[..., Process], calls_to: Any, number: signal.Signals
) -> None:
    process = start()
    assert process.line == f"millrace broker 0 listening on {process.address}\n"
    assert calls_to(process.address).call("ApiVersions", pb.ApiVersionsRequest()).protocol_version == 1
    assert process.end(number) == 0
    assert "has stopped" in process.errors.read_text()


@pytest.mark.parametrize("kind", ["pipe", "file", "nothing"])
def test_a_broker_with_until_input_ends_stops_at_the_end_of_its_input(
    start: Callable[..., Process], tmp_path: Path, kind: str
) -> None:
    reading, writing = os.pipe()
    (tmp_path / "input").write_text("a line\n")
    with os.fdopen(reading), (tmp_path / "input").open() as file:
        given = {"pipe": reading, "file": file, "nothing": subprocess.DEVNULL}[kind]
        process = start("--until-input-ends", given=given)
    assert "listening on" in process.line
    with os.fdopen(writing, "w") as pipe:
        if kind == "pipe":
            pipe.write("a line\n")
            pipe.flush()
            assert process.is_running
    assert process.wait() == 0
    assert "has stopped" in process.errors.read_text()


def test_a_start_up_to_the_first_acknowledgement_takes_little_cpu_time(
    start: Callable[..., Process], calls_to: Any
) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run_to_end([sys.executable, "-c", "import millrace_broker.server"]).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    imports_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    process = start()
    calls = calls_to(process.address)
    calls.create("t")
    assert calls.produce("t", calls.batch(b"x")).base_offset == 0
    # The benchmark measures the goal of one second on a quiet machine. Most of the time goes into the imports.
    assert process.cpu_seconds() < 4 * imports_s


def test_a_port_in_use_is_reported_with_the_remedy(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert process.wait() == 1
    text = process.errors.read_text()
    assert "the port is in use" in text
    assert len(text.splitlines()) == 1
    assert "--listen" in text
    assert "Traceback" not in text
    assert not (tmp_path / "data").exists()


def test_two_brokers_do_not_share_a_port_nor_a_directory(start: Callable[..., Process], tmp_path: Path) -> None:
    first = start()
    port_taken = start("--listen", first.address, data_dir=tmp_path / "other")
    assert port_taken.wait() == 1
    directory_taken = start()
    assert directory_taken.wait() == 1
    text = directory_taken.errors.read_text()
    assert "in use by another broker" in text
    assert "Traceback" not in text
    assert first.end(signal.SIGTERM) == 0


def test_a_directory_of_another_broker_is_refused(start: Callable[..., Process], tmp_path: Path) -> None:
    assert start().end(signal.SIGTERM) == 0
    process = start("-o", "broker.id=7")
    assert process.wait() == 1
    assert "belongs to broker 0" in process.errors.read_text()


def test_data_without_its_metadata_is_refused(start: Callable[..., Process], tmp_path: Path) -> None:
    assert start().end(signal.SIGTERM) == 0
    for path in (tmp_path / "data").glob("millrace-metadata.sqlite*"):
        path.unlink()
    process = start()
    assert process.wait() == 1
    assert "not its metadata" in process.errors.read_text()


def test_a_directory_that_cannot_be_made_is_refused(start: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = start("-o", f"log.dirs={tmp_path / 'file' / 'data'}", "--data-dir", str(tmp_path / "file" / "data"))
    assert process.wait() == 1
    assert "cannot create the data directory" in process.errors.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["-o", "no.such=1"], 1, "no.such"),
        (["-o", "num.partitions=many"], 1, "num.partitions='many'"),
        (["-o", "nonsense"], 2, "expected NAME=VALUE"),
        (["--config", "/does/not/exist"], 1, "/does/not/exist"),
        (["--log-level", "LOUD"], 2, "LOUD"),
        (["--no-such-option"], 2, "no-such-option"),
    ],
)
def test_a_wrong_option_is_named(
    start: Callable[..., Process], arguments: list[str], status: int, message: str
) -> None:
    process = start(*arguments)
    assert process.wait() == status
    text = process.errors.read_text()
    assert message in text
    assert "Traceback" not in text


def test_a_properties_file_is_loaded_and_the_command_line_overrides_it(
    start: Callable[..., Process], calls_to: Any, tmp_path: Path
) -> None:
    file = tmp_path / "my.properties"
    file.write_text("num.partitions=5\nlog.retention.hours=2\n")
    calls = calls_to(start("--config", str(file), "-o", "log.retention.hours=3").address)
    assert calls.create("t", partitions=-1).num_partitions == 5
    resource = pb.ConfigResource(type=pb.BROKER, name="0")
    described = calls.call("DescribeConfigs", pb.DescribeConfigsRequest(resources=[resource])).results[0]
    values = {entry.name: entry.value for entry in described.entries}
    assert values["log.retention.ms"] == str(3 * 3_600_000)


def test_everything_is_there_after_a_clean_restart(start: Callable[..., Process], calls_to: Any) -> None:
    first = start()
    calls = calls_to(first.address)
    cluster_id = calls.call("Metadata", pb.MetadataRequest()).cluster_id
    schema_id = calls.create("typed", ddl="a INT", key_columns=["a"]).schema_id
    calls.create("t", partitions=2, configs={"segment.bytes": "12345"})
    calls.produce("t", calls.batch(b"x"), partition=1)
    before = calls.topics(include_schemas=True)
    assert first.end(signal.SIGTERM) == 0

    calls = calls_to(start().address)
    assert calls.topics(include_schemas=True) == before
    assert calls.call("Metadata", pb.MetadataRequest()).cluster_id == cluster_id
    assert calls.offset("t", -1, partition=1).offset == 1
    assert calls.create("typed2", ddl="a INT").schema_id > schema_id
    producer_ids = [
        calls.call("InitProducerId", pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)).producer_id
    ]
    assert producer_ids == [0]


@pytest.mark.dial("BROKER_KILL_ROUNDS", seconds=10)
def test_acknowledged_records_and_topics_survive_kill_9_at_any_moment(
    start: Callable[..., Process], calls_to: Any, rounds: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged: dict[str, int] = {}
    for round_number in range(rounds):
        process = start()
        killer = threading.Timer(chance.uniform(0.1, 0.6), process.kill)
        if round_number % 2:  # at any moment, perhaps before an acknowledgement
            killer.start()
        try:
            calls = calls_to(process.address)
            for number in range(10_000):
                if number == 1 and not round_number % 2:
                    killer.start()
                name = f"t{round_number}-{number // 3}"
                if calls.create(name, partitions=2).error.code == 0:
                    acknowledged[name] = 0
                for _ in range(3):
                    result = calls.produce(name, calls.batch(*[b"x"] * 10), partition=1)
                    if result.error.code == 0:
                        acknowledged[name] = result.base_offset + 10
                if number % 5 == 4:
                    victim = chance.choice(sorted(acknowledged))
                    acknowledged.pop(victim)  # from now on the record may be there or not
                    calls.call("DeleteTopics", pb.DeleteTopicsRequest(names=[victim], timeout_ms=AN_HOUR_MS))
        except errors.MillraceError as error:
            assert not process.is_running or isinstance(error, errors.BrokerUnavailableError), error  # noqa: PT017
        assert process.wait() == -signal.SIGKILL
        killer.join()
    calls = calls_to(start().address)
    topics = calls.topics()
    for name, end_offset in acknowledged.items():
        assert len(topics[name].partitions) == 2
        assert calls.offset(name, -1, partition=1).offset >= end_offset
    for name in topics:
        assert calls.produce(name, calls.batch(b"more")).error.code == 0
    assert acknowledged


def test_a_stopping_broker_answers_the_calls_that_wait(tmp_path: Path, calls_to: Any) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create("t")
        future = calls.stub.Fetch.future(calls.fetch_request({"t": {0: 0}}, max_wait_ms=60_000))
        eventually(lambda: broker.server.broker.statistics().delayed_fetches.delayed, "the delayed fetch")
    # The fetch is answered, and not cut off after the grace period of calls in progress.
    assert future.result().topics[0].partitions[0].records == b""


def test_a_broker_stops_cleanly_under_load_and_keeps_acknowledged_records(
    start: Callable[..., Process], calls_to: Any, tmp_path: Path
) -> None:
    process = start()
    calls_to(process.address).create("t", partitions=4)
    acknowledged = [0] * 4
    refused: list[errors.MillraceError] = []
    in_progress = threading.Barrier(5)

    def produce(partition: int) -> None:
        calls = calls_to(process.address)
        batch = calls.batch(*[b"x" * 100] * 1000)
        for number in range(100_000):
            try:
                result = calls.produce("t", batch, partition=partition)
            except errors.MillraceError as error:
                refused.append(error)
                return
            if result.error.code:
                return
            acknowledged[partition] = result.base_offset + 1000
            if number == 3:
                in_progress.wait(STALL_S)

    threads = [threading.Thread(target=produce, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    in_progress.wait(STALL_S)
    assert process.end(signal.SIGTERM) == 0
    for thread in threads:
        thread.join(STALL_S)
        assert not thread.is_alive()
    assert {type(error) for error in refused} <= {errors.BrokerUnavailableError, errors.RequestTimedOutError}, refused
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    text = process.errors.read_text()
    assert "Traceback" not in text
    assert "unexpected" not in text
    calls = calls_to(start().address)
    assert all(calls.offset("t", -1, partition=number).offset >= end for number, end in enumerate(acknowledged))
    assert min(acknowledged) >= 4000


_TELLS_MEMORY = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="this system does not report a process's private memory"
)


def _produce_request(partition: int, records: bytes) -> pb.ProduceRequest:
    data = pb.ProduceRequest.PartitionData(partition=partition, records=records)
    return pb.ProduceRequest(acks=-1, topics=[pb.ProduceRequest.TopicData(name="t", partitions=[data])])


@_TELLS_MEMORY
def test_large_requests_leave_nothing_behind(start: Callable[..., Process], calls_to: Any) -> None:
    process = start()
    calls = calls_to(process.address)
    calls.create("t")
    request = _produce_request(0, calls.batch(os.urandom(8 * 2**20)))
    for _ in range(40):
        assert calls.call("Produce", request).topics[0].partitions[0].error.code == 0
    assert process.private_bytes() < 200e6  # all of them together are 336 MB


@_TELLS_MEMORY
def test_a_flood_of_requests_and_fetches_leaves_its_memory_small(start: Callable[..., Process], calls_to: Any) -> None:
    process = start()
    calls = [calls_to(process.address) for _ in range(4)]
    calls[0].create("t", partitions=4)
    records = calls[0].batch(os.urandom(2**20))
    largest = 0

    def wait_for(futures: list[Any]) -> list[Any]:
        def are_done() -> bool:
            nonlocal largest
            largest = max(largest, process.private_bytes())
            return all(future.done() for future in futures)

        eventually(are_done, "answers", progress=lambda: sum(future.done() for future in futures))
        return [future.result().topics[0].partitions[0] for future in futures]

    requests = [_produce_request(number % 4, records) for number in range(256)]
    stored = wait_for([calls[number % 4].stub.Produce.future(request) for number, request in enumerate(requests)])
    assert all(result.error.code == 0 for result in stored)
    fetches = [
        calls[0].fetch_request({"t": {number % 4: 0}}, max_bytes=8 * 2**20, partition_max_bytes=2**30)
        for number in range(32)
    ]
    found = wait_for([calls[number % 4].stub.Fetch.future(fetch) for number, fetch in enumerate(fetches)])
    assert all(len(result.records) > 4 * 2**20 for result in found)
    assert largest < 300e6


def test_an_embedded_broker_can_be_started_again_on_its_data(tmp_path: Path, calls_to: Any) -> None:
    broker = EmbeddedBroker(tmp_path / "data", num_partitions=3)
    for expected in (0, 1):
        with broker:
            calls = calls_to(broker.bootstrap_servers)
            calls.create("t", partitions=-1)
            assert calls.produce("t", calls.batch(b"x"), partition=2).base_offset == expected


def test_a_start_that_fails_raises_and_leaves_nothing_running(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path / "data"),
        pytest.raises(errors.EnvironmentProblemError, match="in use"),
        EmbeddedBroker(tmp_path / "data"),
    ):
        pytest.fail("started")
    with EmbeddedBroker(tmp_path / "data"):
        pass


class _Messages(logging.Handler):
    """Messages of a logger. A record of gRPC may have an object that is just being freed, and is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def messages_of_grpc() -> Iterator[list[str]]:
    """Texts that gRPC logs at the level ``DEBUG``."""
    logger, handler = logging.getLogger("grpc._cython.cygrpc"), _Messages()
    level, logger.propagate = logger.level, False  # pytest keeps records
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    yield handler.texts
    logger.setLevel(level)
    logger.removeHandler(handler)
    logger.propagate = True


@pytest.mark.parametrize("problem", ["data", "metrics", "grpc"])
def test_a_start_that_fails_releases_all_ports(tmp_path: Path, problem: str, messages_of_grpc: list[str]) -> None:
    port, grpc_port = free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{port},GRPC://127.0.0.1:{grpc_port}"
    with EmbeddedBroker(tmp_path / "other", metrics_port=0) as other:
        options: dict[str, Any] = {"listeners": listeners}
        if problem == "metrics":
            options["metrics.port"] = other.metrics_port
        if problem == "grpc":
            options["listeners"] = f"PLAINTEXT://127.0.0.1:{port},GRPC://{other.grpc_address}"
        data = tmp_path / ("other" if problem == "data" else "data")
        with pytest.raises(errors.EnvironmentProblemError, match="in use"):
            EmbeddedBroker(data, options=options).start()
        with EmbeddedBroker(tmp_path / "data", options={"listeners": listeners}) as broker:
            assert broker.grpc_address == f"127.0.0.1:{grpc_port}"
    gc.collect()
    assert not [each for each in messages_of_grpc if "dealloc" in each], "a server of gRPC was not stopped"

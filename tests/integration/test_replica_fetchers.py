"""Test of a changed number of fetchers while followers fetch."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from .replica_cluster import ReplicaCluster, append, values_of
from .waiting import STALL_S, eventually


def test_partitions_pass_from_fetcher_to_fetcher_while_they_are_written_to(pair: ReplicaCluster) -> None:
    partitions = range(8)
    pair.create("t", *[(1, 2)] * len(partitions))
    acknowledged, is_over = [0], threading.Event()

    def write() -> None:
        while not is_over.is_set():
            for partition in partitions:
                assert not append(pair, 1, "t", b"%d" % acknowledged[0], partition=partition).error.code
            acknowledged[0] += 1

    def fetchers() -> set[str]:
        names = (task.get_name() for task in asyncio.all_tasks(pair._loop))
        return {name for name in names if name.startswith("millrace-fetch-from-1-")}

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        try:
            for count in (2, 4, 2, 1) * 3:
                pair._loop.call_soon_threadsafe(pair.broker(2).replicas.resize_fetchers, count)
                wanted = {f"millrace-fetch-from-1-{number}" for number in range(count)}
                eventually(partial(lambda wanted: fetchers() == wanted, wanted))
                eventually(partial(lambda before: acknowledged[0] > before + 2 or writing.done(), acknowledged[0]))
        finally:
            is_over.set()
        writing.result(STALL_S)
    for partition in partitions:
        pair.settle("t", partition)
        pair.assert_identical("t", partition)
        assert values_of(pair, "t", partition) == [b"%d" % number for number in range(acknowledged[0])]

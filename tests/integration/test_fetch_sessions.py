"""Tests of a leader's answers within a fetch session (KIP-227)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.clients import Producer
from millrace.errors import UnknownLeaderEpochError
from millrace.protocol import millrace_pb2 as pb

from .replica_cluster import ReplicaCluster
from .waiting import STALL_S


def test_data_that_came_with_an_error_is_sent_again(tmp_path: Path) -> None:
    # A follower ignores everything else in such an answer. Without a new record it would never get the high watermark.
    with ReplicaCluster(tmp_path, brokers=2) as cluster:
        cluster.create("t", (1, 2))
        with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            producer.send("t", value=b"a")
        cluster.settle("t")

        def fetch(**session: int) -> pb.FetchResponse:
            request = pb.FetchRequest(replica_id=2, topics=[] if session else [topic], **session)
            asking: Any = cluster.broker(2).peers.call(1, "Fetch", request, timeout_s=STALL_S)
            response: pb.FetchResponse = cluster.run(asking)
            return response

        # A follower in the next leader epoch, which the leader does not know yet.
        wanted = pb.FetchRequest.PartitionFetch(
            partition=0, fetch_offset=1, partition_max_bytes=100, current_leader_epoch=1, last_fetched_epoch=0
        )
        topic = pb.FetchRequest.TopicFetch(name="t", partitions=[wanted])
        refused = fetch()
        assert refused.topics[0].partitions[0].error.code == UnknownLeaderEpochError.code
        cluster.elect("t", 1)
        session_id = refused.session_id
        assert fetch(session_id=session_id, session_epoch=1).topics[0].partitions[0].high_watermark == 1
        assert not fetch(session_id=session_id, session_epoch=2).topics

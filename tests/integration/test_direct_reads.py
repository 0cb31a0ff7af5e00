"""Tests of the paths of segment files that a broker returns.

Tasks read the files at these paths.
"""

import asyncio
import socket

import pyarrow as pa
import pytest

from millrace.clients import Admin, Producer
from millrace.errors import StorageError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import ClientAddress, RequestContext, locate_range
from millrace_broker.quotas import CallClass, Lease
from millrace_broker.security import ACL_AUTHORIZER, ANONYMOUS
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace import DefaultSource

TOPIC = "orders"
VALUES = [b"%d" % number for number in range(20)]


def own_address():
    """Return an address of this host that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.7", 9))
        except OSError:
            pytest.skip("this host has no address but loopback")
        return probe.getsockname()[0]


def fill(servers):
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topic(TOPIC)
        producer.send_table(TOPIC, pa.table({"value": pa.array(VALUES, pa.binary())}))


def read_directly(servers, transport="auto"):
    options = {
        "kafka.bootstrap.servers": servers,
        "kafka.transport": transport,
        "subscribe": TOPIC,
        "directReads": "always",
    }
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    return [
        value for task in reader.partitions() for batch in reader.read(task) for value in batch["value"].to_pylist()
    ]


def paths_told(broker, *, is_local):
    """Return the paths that a caller on this host or on another one gets."""
    inner = broker.server.broker
    budget = inner.admission.rooms[CallClass.CLIENT].response_bytes
    context = RequestContext(
        api_name="LocateRange",
        listener_name="PLAINTEXT",
        principal=ANONYMOUS,
        client_id="",
        client_address=ClientAddress("127.0.0.1" if is_local else "203.0.113.7", 5000),
        response_lease=Lease(budget),
    )
    request = pb.LocateRangeRequest(topic=TOPIC, start_offset=0, end_offset=-1)
    answer = asyncio.run_coroutine_threadsafe(locate_range.handle(inner, request, context), broker._loop).result()
    return {extent.path for extent in answer.extents}


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_broker_at_an_address_of_its_host_names_files_to_local_clients(tmp_path, transport):
    address = own_address()
    options = {
        "listeners": f"PLAINTEXT://{address}:0,GRPC://{address}:0",
        "allow.plaintext.listeners": "true",
        "authorizer.class.name": ACL_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
        "direct.reads.enable": "local",
    }
    with EmbeddedBroker(tmp_path / "broker", options=options) as broker:
        servers = f"{address}:{broker.port}"
        fill(servers)
        assert read_directly(servers, transport) == VALUES


@pytest.mark.parametrize(
    ("enabled", "here", "elsewhere"),
    [("local", True, False), ("true", True, False), ("all", True, True), ("false", False, False)],
)
def test_the_option_decides_which_clients_get_file_paths(tmp_path, enabled, here, elsewhere):
    with EmbeddedBroker(tmp_path / "broker", options={"direct.reads.enable": enabled}) as broker:
        fill(broker.bootstrap_servers)
        for is_local, is_told in ((True, here), (False, elsewhere)):
            paths = paths_told(broker, is_local=is_local)
            assert all(path.startswith(str(tmp_path)) for path in paths) if is_told else paths == {""}
        if here:
            assert read_directly(broker.bootstrap_servers) == VALUES
        else:
            with pytest.raises(StorageError, match="the broker does not name its files"):
                read_directly(broker.bootstrap_servers)

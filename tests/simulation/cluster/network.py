"""The network of a simulated cluster.

Calls have delay, loss and reordering, and links can be cut. A call is a request and an answer. Each is a message of
bytes with a delay of its own, so calls overtake each other. A message that is lost or meets a cut link gives no notice.
The caller detects after a while that the connection broke, or waits until its timeout. A held message still arrives,
but late. By then its sender may have stopped waiting or have been replaced. Calls to a dead process are refused at
once, as by a host without a listener.

A connection between brokers without calls is reset when the process at its other end dies, or its host begins to refuse
connections. If the link is cut then, the reset arrives once the link is repaired. A paused process keeps its
connections, and its host accepts new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf.message_factory import GetMessageClass

from millrace.config.listeners import Listener
from millrace.errors import BrokerUnavailableError, MillraceError, RequestTimedOutError
from millrace.kafka_protocol.calls.table import NAMES, ApiKey
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.kafka_protocol.lookup import request_header_version, response_class, response_header_version
from millrace.kafka_protocol.message import Message
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.frames import HEAD_BYTES, read_client_id, read_head
from millrace_broker.api import ClientAddress, RequestContext, in_progress, known_error
from millrace_broker.broker import Broker
from millrace_broker.kafka_api import KafkaState, kafka_calls
from millrace_broker.kafka_api.call import KafkaCall
from millrace_broker.listeners.shared import UNARY_METHODS
from millrace_broker.network.peers import PeerListener, Peers
from millrace_broker.quotas import class_of, current_call, parked
from millrace_broker.security import ANONYMOUS

from .loop import Process, VirtualLoop, current

_ANSWERS: Final = {
    method.name: GetMessageClass(method.output_type) for method in pb.DESCRIPTOR.services_by_name["Broker"].methods
}
_BROKERS: Final = "broker-"
"""The prefix of brokers' host names, by which connections name their owner."""
LISTENER: Final = "PLAINTEXT"
"""The listener name of every simulated broker."""
_ADDRESS: Final = ClientAddress("10.0.0.1", 0)
"""The address of all clients. Handlers distinguish hosts by client id, which is the host name."""
_TAKES_S: Final = (0.0002, 0.0015)
_BREAKS_S: Final = (0.05, 2.0)
"""The delay after which a broken connection is detected."""
_KEEPALIVE_S: Final = 1.0
"""The interval at which the kernel probes the other end of a connection."""
_CONNECT_S: Final = 1.0


@dataclass(eq=False, slots=True)
class _Pending:
    """A call in flight. ``answer`` is the caller's future of bytes."""

    name: str
    request: bytes
    is_kafka: bool
    source: str
    target: str
    answer: asyncio.Future[bytes]
    caller: Process
    task: asyncio.Task[None] | None = None


@dataclass(eq=False, slots=True)
class _Connection:
    """A connection without calls. ``ended`` is the caller's future, which a reset by the other end completes."""

    source: str
    target: str
    ended: asyncio.Future[None]
    caller: Process


class _Message(NamedTuple):
    """A held message. ``receiver`` is the process that ran at its target when it was sent."""

    arrive: Callable[[], None]
    receiver: Process | None


class Network:
    """The listeners of hosts, and the state of links.

    Hosts are names. Each new run of a host calls ``listen`` again.
    """

    def __init__(self, loop: VirtualLoop, choose: random.Random) -> None:
        self._loop: Final = loop
        self._choose: Final = choose
        self._listeners: Final[dict[str, tuple[Process, Broker]]] = {}
        self._kafka_calls: Final[dict[str, Mapping[int, KafkaCall]]] = {}
        """The calls of Kafka of each host, with their fetch sessions."""
        self.cut: Final[set[tuple[str, str]]] = set()
        """Cut links, by source and target."""
        self._held: Final[dict[tuple[str, str], list[_Message]]] = {}
        self.refusing: Final[set[str]] = set()
        """Hosts whose ports are closed, although their processes live."""
        self.have_refused: Final[set[Process]] = set()
        """Processes that lived behind such a port."""
        self._connections: Final[list[_Connection]] = []
        self.on_call: Callable[[str, str], None] = lambda source, name: None
        """A function that is called before each call, with its caller and its name."""
        self.loss = 0.0
        self.slow = 0.0
        """The probability that a message is lost, or takes up to ``slow_s``."""
        self.slow_s = 0.3

    def listen(self, host: str, process: Process, broker: Broker) -> None:
        """Let this broker answer calls to a host."""
        self._listeners[host] = (process, broker)
        self._kafka_calls[host] = kafka_calls(KafkaState(broker.config))
        if host in self.refusing:
            self.have_refused.add(process)

    def refuse(self, host: str) -> None:
        """Close the ports of a host, reset its connections, and refuse new ones."""
        self.refusing.add(host)
        if host in self._listeners:
            self.have_refused.add(self._listeners[host][0])
        self.reset(host)

    def reset(self, host: str) -> None:
        """Reset the connections to a host, because its process is dead or its ports are closed."""
        for connection in [each for each in self._connections if each.target == host]:
            self._connections.remove(connection)
            self._reset(connection)

    def _reset(self, connection: _Connection) -> None:
        if not self.is_open(connection.target, connection.source):
            self._loop.call_later(_KEEPALIVE_S, self._reset, connection, context=_NOBODY.context)
            return
        delay_s = self._choose.uniform(*_TAKES_S)
        self._loop.call_later(delay_s, self._end, connection, context=connection.caller.context)

    def _end(self, connection: _Connection) -> None:
        if not connection.ended.done():
            connection.ended.set_result(None)

    async def wait_for_reset(self, source: str, target: str) -> None:
        """Hold a connection to a host that has just answered, until the host resets it."""
        caller = current.get()
        assert caller is not None, "connections belong to processes"
        connection = _Connection(source, target, self._loop.create_future(), caller)
        if self._does_accept(target):
            self._connections.append(connection)
        else:
            self._reset(connection)
        try:
            await connection.ended
        finally:
            if connection in self._connections:
                self._connections.remove(connection)

    async def refuses(self, source: str, target: str, timeout_s: float) -> bool:
        """Tell whether a host refuses a new connection. Return False if it does not answer."""
        caller = current.get()
        assert caller is not None, "connections belong to processes"
        answer: asyncio.Future[bool] = self._loop.create_future()

        def tell(is_refused: bool) -> None:
            if not answer.done():
                answer.set_result(is_refused)

        def arrive() -> None:
            is_refused = not self._does_accept(target)
            self._send(target, source, lambda: self._loop.call_soon(tell, is_refused, context=caller.context))

        self._send(source, target, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return False

    def _does_accept(self, host: str) -> bool:
        process = self._process_at(host)
        return process is not None and not process.is_dead and host not in self.refusing

    def is_open(self, source: str, target: str) -> bool:
        """Tell whether messages pass from one host to the other."""
        return (source, target) not in self.cut

    def hold(self, links: Iterable[tuple[str, str]]) -> None:
        """Hold messages over these links."""
        for link in links:
            self._held.setdefault(link, [])

    def release(self) -> None:
        """Deliver all held messages to the processes that still run."""
        held = dict(self._held)
        self._held.clear()
        for (_, target), messages in held.items():
            for message in messages:
                if self._process_at(target) is message.receiver:
                    self._loop.call_later(self._choose.uniform(*_TAKES_S), message.arrive, context=_NOBODY.context)

    def _process_at(self, host: str) -> Process | None:
        return self._listeners[host][0] if host in self._listeners else None

    async def call(
        self, source: str, target: str, name: str, request: bytes, timeout_s: float, *, is_kafka: bool = False
    ) -> bytes:
        """Call a host. Raises its error, ``BrokerUnavailableError``, ``RequestTimedOutError``.

        With ``is_kafka``, request and answer have Kafka's framing.
        """
        caller = current.get()
        assert caller is not None, "processes make calls"
        self.on_call(source, name)
        pending = _Pending(name, request, is_kafka, source, target, self._loop.create_future(), caller)
        self._send(source, target, lambda: self._arrive(pending), pending)
        try:
            async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 loses a cancellation beside an answer
                return await pending.answer
        except asyncio.CancelledError:
            self._send(source, target, lambda: self._abandon(pending))
            raise
        except TimeoutError:
            self._send(source, target, lambda: self._abandon(pending))
            raise RequestTimedOutError(f"{target} did not answer {name} in {timeout_s} s") from None

    # --- messages --------------------------------------------------------------------------------------------

    def _send(self, source: str, target: str, arrive: Callable[[], None], call: _Pending | None = None) -> None:
        """Deliver a message, or let the caller of ``call`` eventually detect its loss.

        A process that is killed in a write runs on to the end of its callback, and sends nothing.
        """
        sender = current.get()
        if sender is not None and sender.is_dead:
            return
        if (source, target) in self._held:
            if call is not None:  # the notice that a caller has stopped waiting never arrives
                self._held[source, target].append(_Message(arrive, self._process_at(target)))
            return
        if not self.is_open(source, target) or self._choose.random() < self.loss:
            if call is not None and self._choose.random() < 0.7:
                self._loop.call_later(self._choose.uniform(*_BREAKS_S), self._break, call, context=call.caller.context)
            return
        delay_s = self._choose.uniform(*_TAKES_S)
        if self._choose.random() < self.slow:
            delay_s = self._choose.uniform(0, self.slow_s)
        self._loop.call_later(delay_s, arrive, context=_NOBODY.context)

    def _break(self, call: _Pending) -> None:
        if not call.answer.done():
            call.answer.set_exception(BrokerUnavailableError(f"the connection to {call.target} broke"))

    def _arrive(self, call: _Pending) -> None:
        if not self.is_open(call.source, call.target):
            return
        process, broker = self._listeners.get(call.target, (None, None))
        if process is None or broker is None or not self._does_accept(call.target):
            self._send(call.target, call.source, lambda: self._tell(call, self._break), call)
            return
        self._loop.call_soon(self._begin, call, broker, context=process.context)

    def _tell(self, call: _Pending, how: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon(how, call, *args, context=call.caller.context)

    def _begin(self, call: _Pending, broker: Broker) -> None:
        call.task = self._loop.create_task(self._handle(call, broker), name=f"{call.name} from {call.source}")

    async def _handle(self, call: _Pending, broker: Broker) -> None:
        answer: bytes | MillraceError
        with contextlib.ExitStack() as held:
            try:
                call_class = class_of(call.name, is_broker=call.source.startswith(_BROKERS))
                if call.is_kafka and broker.admission.rooms[call_class].is_full:
                    admitted = await broker.admission.begin_in_turn(call.source, call_class)
                else:
                    admitted = broker.admission.begin(call.source, call_class)
                held.callback(admitted.response_lease.release)
                held.callback(admitted.end)
                await admitted.take_request_memory(len(call.request))
                context = RequestContext(
                    api_name=call.name,
                    listener_name=LISTENER,
                    principal=ANONYMOUS,
                    client_id=call.source,
                    client_address=_ADDRESS,
                    response_lease=admitted.response_lease,
                )
                in_progress.set(context)
                current_call.set(admitted)
                answer = await (self._kafka_answer if call.is_kafka else _own_answer)(call, broker, context)
            except Exception as error:  # noqa: BLE001 - every error ends the call with its number
                answer = known_error(error)
        self._send(call.target, call.source, lambda: self._tell(call, self._answer, answer), call)

    async def _kafka_answer(self, call: _Pending, broker: Broker, context: RequestContext) -> bytes:
        head, content = read_head(call.request), call.request[HEAD_BYTES:]
        _, position = read_client_id(content)
        kafka_call = self._kafka_calls[call.target][head.api_key]
        work, _ = kafka_call.begin(broker, head, content, position, context)
        return b"".join(await work)

    def _answer(self, call: _Pending, answer: bytes | MillraceError) -> None:
        if call.answer.done():
            return
        if isinstance(answer, bytes):
            call.answer.set_result(answer)
        else:
            call.answer.set_exception(answer)

    def _abandon(self, call: _Pending) -> None:
        """Cancel the handler, because the caller has stopped waiting."""
        if call.task is not None and not call.task.done():
            self._loop.call_soon(call.task.cancel, context=self._loop.owner(call.task).context)


async def _own_answer(call: _Pending, broker: Broker, context: RequestContext) -> bytes:
    method = UNARY_METHODS[call.name.encode()]
    response: Any = await method.handler(broker, method.request.FromString(call.request), context)
    answer: bytes = response.SerializeToString()
    return answer


_NOBODY: Final = Process("network")


class SimulatedPeers(Peers):
    """A broker's calls to the others over the simulated network.

    The host of an address is a name there.
    """

    def __init__(self, network: Network, host: str) -> None:
        super().__init__(PeerListener(LISTENER))
        self._network: Final = network
        self._host: Final = host
        self._hosts: Final[dict[int, str]] = {}

    def know(self, broker_id: int, endpoints: Mapping[str, Listener]) -> None:
        super().know(broker_id, endpoints)
        self._hosts[broker_id] = endpoints[LISTENER].host

    def forget(self, broker_id: int) -> None:
        super().forget(broker_id)
        self._hosts.pop(broker_id, None)

    async def call(self, broker_id: int, name: str, request: Any, *, timeout_s: float, decode: Any = None) -> Any:
        host = self._hosts.get(broker_id)
        if host is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not alive, as far as this broker knows")
        with parked():
            data = await self._network.call(self._host, host, name, request.SerializeToString(), timeout_s)
        return (decode or _ANSWERS[name].FromString)(data)

    async def stay_connected(self, broker_id: int, connected: Callable[[], None]) -> bool:
        host = self._hosts.get(broker_id)
        if host is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not alive, as far as this broker knows")
        await self.call(broker_id, "ApiVersions", pb.ApiVersionsRequest(), timeout_s=_CONNECT_S)
        connected()
        await self._network.wait_for_reset(self._host, host)
        return True

    async def refuses(self, broker_id: int) -> bool:
        host = self._hosts.get(broker_id)
        return host is not None and await self._network.refuses(self._host, host, _CONNECT_S)


async def ask(network: Network, source: str, target: str, request: Any, *, timeout_s: float) -> Any:
    """Make a call as a client does. The class of the request decides which call it is."""
    name = type(request).__name__.removesuffix("Request")
    return _ANSWERS[name].FromString(await network.call(source, target, name, request.SerializeToString(), timeout_s))


async def ask_kafka(
    network: Network, source: str, target: str, request: Message, version: int, *, timeout_s: float
) -> Any:
    """Make a call of Kafka as a client does, and return its response."""
    key = request.API_KEY
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id=source)
    content = header.encode(request_header_version(key, version)) + request.encode(version)
    data = struct.pack(">i", len(content)) + content
    name = NAMES[ApiKey(key)]
    answer = await network.call(source, target, name, data, timeout_s, is_kafka=True)
    size, correlation_id = struct.unpack_from(">ii", answer)
    assert (size, correlation_id) == (len(answer) - 4, 7), "a response has its length and its request's number"
    return response_class(key).decode_from(answer, version, 8 + response_header_version(key, version))[0]

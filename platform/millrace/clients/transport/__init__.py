"""Transport of a client's calls: gRPC, or frames over TCP.

A client uses frames if the broker supports them. ``calls`` defines calls and pending calls. ``link`` is the
connection to one broker, which selects ``grpc_transport`` or ``frame_transport``. Other packages do not depend on the
choice.

``frame_socket`` sends and receives frames, with ``frame_receiver`` and ``call_threads`` for background calls.
``client_tls`` and ``tls_socket`` have TLS, ``grpc_session`` SASL over gRPC. ``kafka_call`` makes single calls of Kafka.
"""

from millrace.clients.transport.calls import FETCH, PRODUCE, Helper, Method, PendingCall, Received, UnaryCall, unary
from millrace.clients.transport.link import Link, Links

__all__ = ["FETCH", "PRODUCE", "Helper", "Link", "Links", "Method", "PendingCall", "Received", "UnaryCall", "unary"]

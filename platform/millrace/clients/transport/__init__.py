"""How a client's calls travel: over gRPC, or as frames over TCP where the broker has a port for them.

``calls`` says what a call is and what one under way can be asked; ``link`` is the way to one broker, which chooses
between ``grpc_transport`` and ``frame_transport``. Above this package nobody knows which it is.
"""

from millrace.clients.transport.calls import FETCH, PRODUCE, Helper, Method, PendingCall, Received, UnaryCall, unary
from millrace.clients.transport.link import Link, Links

__all__ = ["FETCH", "PRODUCE", "Helper", "Link", "Links", "Method", "PendingCall", "Received", "UnaryCall", "unary"]

"""Connections between brokers: their addresses, calls to them, and what the sockets say of their processes.

* ``peers``            calls to other brokers by their ids
* ``peer_connection``  one connection for frames
* ``sockets``          keep-alive, and the proof that nobody listens at an address
"""

from millrace_broker.network.peers import Peers

__all__ = ["Peers"]

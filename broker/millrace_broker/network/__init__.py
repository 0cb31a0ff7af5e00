"""Connections and calls between brokers.

* ``peers``            calls to other brokers by their ids
* ``peer_connection``  one connection for frames
* ``sockets``          TCP keep-alive, this host's addresses, and the proof that no process listens at an address
"""

from millrace_broker.network.peers import CONTROLLER_CALLS, PeerListener, Peers

__all__ = ["CONTROLLER_CALLS", "PeerListener", "Peers"]

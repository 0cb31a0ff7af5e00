"""Security of connections, for clients and brokers.

* ``stores``     key stores, trust stores and revocation lists (PEM, PKCS12)
* ``tls``        contexts of TLS for both ends of a connection
* ``reloading``  what is made of files, made again when their content changes
* ``https``, ``http_access``  the HTTP server of metrics, with or without TLS and users
* ``authority``  the authority of a cluster, which issues certificates
"""

from millrace.security.reloading import Reloading
from millrace.security.stores import TlsMaterial
from millrace.security.tls import client_context, refuse_for_grpc, server_context

__all__ = ["Reloading", "TlsMaterial", "client_context", "refuse_for_grpc", "server_context"]

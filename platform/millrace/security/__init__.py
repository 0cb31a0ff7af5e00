"""Security of connections, for clients and brokers.

* ``stores``                      key stores, trust stores and revocation lists (PEM, PKCS12)
* ``tls``                         contexts of TLS for both ends of a connection
* ``reloading``                   values made of stores, made again when the content of a file changes
* ``authority``                   the authority of a cluster, which issues certificates
* ``sasl``                        the authentication of a client
* ``scram``, ``kerberos``         mechanisms of SASL, for both ends of a connection
* ``oauth_login``, ``endpoints``  tokens of a client, and the documents of their provider
* ``https``, ``http_access``      the HTTP server of metrics, with or without TLS and users
"""

from millrace.security.reloading import Reloading
from millrace.security.stores import TlsMaterial
from millrace.security.tls import client_context, refuse_for_grpc, server_context

__all__ = ["Reloading", "TlsMaterial", "client_context", "refuse_for_grpc", "server_context"]

"""Listeners for Kafka's framing and for gRPC.

Both kinds of listener call the handlers of ``millrace_broker.api``.

* ``tcp_listener``  Kafka's framing, for calls of Kafka and of millrace; docs/design/0042
* ``connection``, ``connection_states``, ``owner``, ``response_writer``  one connection, its requests and its responses
* ``reception``     the content of a request that did not arrive with its head
* ``admission_wait``, ``quota_wait``  waits of a connection for place and memory, and for its client's quotas
* ``tls_transport`` TLS of a connection; ``unmapped_connection`` refuses a client whose certificate no rule maps
* ``wire_calls``    how calls are read and written; ``millrace.protocol.frames`` describes the format
* ``handling``      runs a handler up to its first wait, and continues it as a task
* ``grpc_server``   gRPC calls, for any client; ``grpc_sasl`` authenticates them, ``grpc_connections`` counts them
* ``listener_set``  all listeners of a broker, which change while it runs
* ``shared``        limits that both listeners share
"""

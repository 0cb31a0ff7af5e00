"""The gRPC messages of millrace and their generated stubs.

``frames`` describes the calls in Kafka's framing. ``fetch_response`` and ``produce_request`` are about records with few
copies, and ``protobuf_fields`` finds them.
``acls``, ``item_errors`` and ``status`` convert between messages and Python. ``grpc_sasl`` and ``grpc_forks`` are about
gRPC itself.
"""

"""The gRPC messages of millrace and their generated stubs.

``frames`` describes the calls in Kafka's framing, and ``fetch_response`` reads and writes records with few copies.
``acls``, ``item_errors`` and ``status`` convert between messages and Python. ``grpc_sasl`` and ``grpc_forks`` are about
gRPC itself.
"""

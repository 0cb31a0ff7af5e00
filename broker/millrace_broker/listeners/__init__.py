"""Listeners for gRPC and for frames, with the same handlers behind them.

The handlers are those of ``millrace_broker.api``.

* ``grpc_server`` gRPC calls, for any client
* ``frames``      calls as frames, which cost less; ``millrace.protocol.frames`` describes the format
* ``frame_connection``, ``frame_writer`` ... one connection for frames, its requests and its responses
* ``handling``    runs a handler up to its first wait, and continues it as a task
* ``shared``      limits that both listeners share
"""

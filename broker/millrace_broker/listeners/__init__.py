"""How calls come in: two listeners with the same handlers behind them, those of ``api``.

* ``grpc_server`` calls by gRPC, for any client
* ``frames``      calls as frames, for less: what ``millrace.protocol.frames`` describes
* ``frame_connection``, ``frame_writer`` ... one connection of it, what it receives and what it sends
* ``handling``    a handler run up to its first wait, and on as a task
* ``shared``      the same limits, whichever way a call comes
"""

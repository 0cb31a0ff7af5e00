"""gRPC in processes that start or fork others.

gRPC's handlers for forks (``GRPC_ENABLE_FORK_SUPPORT``, which its core enables) also run before another program is
started with ``preexec_fn``, as PySpark starts its JVM. If gRPC works at that moment, the new process may die before it
runs the program. 3 of 100 died beside an idle broker in the process, 9 of 100 beside calls. ``millrace`` therefore
disables the handlers, as gRPC advises for processes that fork only to start programs (doc/fork_support.md of gRPC). A
process that was forked from one that uses gRPC could then wait for ever in its own calls, and gets an error instead.

Invariant: ``_users`` has the processes that have used gRPC, of this process and those that it was forked from.
"""

from __future__ import annotations

import os
from typing import Final

from millrace.errors import EnvironmentProblemError

_VARIABLE: Final = "GRPC_ENABLE_FORK_SUPPORT"
_TRUE: Final = ("1", "true", "yes")
_users: Final[set[int]] = set()


def use_grpc() -> None:
    """Allow gRPC in this process; to be called before a channel or a server is made.

    Raises ``EnvironmentProblemError`` in a forked process, if the process that it was forked from has used gRPC without
    the handlers.
    """
    process = os.getpid()
    if _users - {process} and os.environ.get(_VARIABLE, "").lower() not in _TRUE:
        raise EnvironmentProblemError(
            "gRPC does not work in this process, which was forked from one that had used gRPC: start the first process "
            f"with {_VARIABLE}=1, or do without gRPC here (clients: transport=auto; brokers: no listener for gRPC)"
        )
    _users.add(process)

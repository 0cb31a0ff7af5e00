"""Time, threads and event loop of the broker.

This package does not depend on the broker's other parts.

* ``clock``             the time, passed in
* ``executors``         the broker's threads, and the work that its event loop does itself
* ``resizable_pool``    threads whose number changes while they run
* ``small_work``        selection of that work, and coroutines that run without a task up to their first wait
* ``turns``             turns of long loops, between which the event loop does other work
* ``background_tasks``  tasks that no caller awaits
* ``failure``           the failure that stops a broker
* ``spinning_loop``     the event loop of a broker's process
* ``malloc``            limits on the memory that the C library keeps
"""

from millrace_broker.runtime.background_tasks import BackgroundTasks, cancel_and_wait
from millrace_broker.runtime.clock import Clock, SystemClock, monotonic_ms
from millrace_broker.runtime.executors import Executors, RunBlocking
from millrace_broker.runtime.failure import Failure
from millrace_broker.runtime.resizable_pool import ResizableThreadPool

__all__ = [
    "BackgroundTasks",
    "Clock",
    "Executors",
    "Failure",
    "ResizableThreadPool",
    "RunBlocking",
    "SystemClock",
    "cancel_and_wait",
    "monotonic_ms",
]

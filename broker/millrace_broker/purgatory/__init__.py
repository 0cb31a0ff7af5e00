"""Delayed operations, which wait for a condition or for a timeout.

* ``timing_wheel``  timers whose cost does not grow with the number of pending timers
* ``timer``         the timing wheel driven by the event loop
* ``operation``     a delayed operation, which is completed once
* ``purgatory``     the operations that wait for a key: a partition, a group
* ``arrivals``      calls that wait for records, the delayed fetches
* ``conditions``    calls that wait until a condition holds
"""

from millrace_broker.log import PartitionKey
from millrace_broker.purgatory.arrivals import Arrivals
from millrace_broker.purgatory.conditions import Conditions
from millrace_broker.purgatory.operation import DelayedOperation
from millrace_broker.purgatory.purgatory import Purgatory, PurgatoryStatistics
from millrace_broker.purgatory.timer import Timer
from millrace_broker.purgatory.timing_wheel import TimerEntry, TimingWheel

__all__ = [
    "Arrivals",
    "Conditions",
    "DelayedOperation",
    "PartitionKey",
    "Purgatory",
    "PurgatoryStatistics",
    "Timer",
    "TimerEntry",
    "TimingWheel",
]

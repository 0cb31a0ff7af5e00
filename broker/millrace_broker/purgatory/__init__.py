"""Operations that wait: for a condition that something else brings about, or for their time to run out.

* ``timing_wheel``  what is due when, at a cost that does not grow with how much is waiting
* ``timer``         the wheel turned by the event loop
* ``operation``     one thing that waits and is completed once
* ``purgatory``     the operations that wait for a key: a partition, a group
* ``arrivals``      the first of them: calls that wait for records to arrive
* ``conditions``    calls that wait until something holds
"""

from millrace_broker.purgatory.arrivals import Arrivals, PartitionKey
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

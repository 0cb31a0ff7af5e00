"""Audit of the authorizer's decisions, in the topic ``__audit``.

Pure parts:

* ``events``     one row of the audit, and batches of rows
* ``selection``  decisions that are recorded
* ``queue``      rows in memory, each for equal decisions
* ``spool``      batches on disk while the topic cannot be written

Parts that act:

* ``topic``  writer of a batch, at the leader of this broker's partition
* ``audit``  background task that writes rows of the queue to the topic, or to the spool and later to the topic
"""

from millrace_broker.audit.audit import Audit, AuditStatistics
from millrace_broker.audit.queue import AuditQueue
from millrace_broker.audit.selection import Selection
from millrace_broker.audit.spool import AuditSpool
from millrace_broker.audit.topic import AuditTopic

__all__ = ["Audit", "AuditQueue", "AuditSpool", "AuditStatistics", "AuditTopic", "Selection"]

"""Audit: proof that a Delta table holds each offset range once.

The audit reports every range that the table does not hold exactly once. It joins three independent records. The
checkpoint has the offsets of each batch. The table's log has the version and the number of rows of each committed
batch. The topics have the offsets with records. The audit does not use Spark, and changes nothing.

* ``intervals``      sets of offsets
* ``delta_history``  the table's log: commits, transactions, files
* ``topic_log``      records of topics within a range
* ``transactions``   batches against commits, by numbers of rows
* ``changes``        other changes of the table
* ``rows``           offsets in the table against offsets read, if rows have offset columns
* ``report``         the combined result, for people and programs
"""

from pyspark_millrace.audit.report import AuditOptions, AuditReport, audit

__all__ = ["AuditOptions", "AuditReport", "audit"]

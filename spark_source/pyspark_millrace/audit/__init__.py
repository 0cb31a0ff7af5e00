"""Proof that a table holds what a query read, each range of offsets once; or the ranges that are not there once.

Three records are joined that know nothing of each other: the checkpoint (which offsets each batch is made of), the
table's log (which batch was committed in which version, and with how many rows) and the topics (which offsets have
records). Nothing is taken from Spark, and nothing is changed.

* ``intervals``      sets of offsets
* ``delta_history``  the table's log: commits, transactions, files
* ``topic_log``      what topics hold of a range
* ``transactions``   batches against commits: decided by numbers of rows
* ``changes``        what was done to the table besides
* ``rows``           offsets in the table against offsets read, where rows have columns that say whence they are
* ``report``         all of it together, for people and programs
"""

from pyspark_millrace.audit.report import AuditOptions, AuditReport, audit

__all__ = ["AuditOptions", "AuditReport", "audit"]

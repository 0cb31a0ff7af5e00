"""Filters on records, applied before rows enter the JVM.

The option ``filter`` sets them, or Spark pushes them down.

- ``condition``: conditions without NOT, because a negated condition is inverted when it is built
- ``parsing``, ``pushed``: the option's text, and Spark's filters, to conditions
- ``literals``, ``binding``: values in the types of their columns
- ``evaluation``: the rows for which a condition is true, with Spark's semantics
- ``bounds``: whether a condition can be true if columns lie within bounds
- ``row_filter``: both for the batches of a task

A condition is null as in SQL, and a row passes only if the condition is true.
"""

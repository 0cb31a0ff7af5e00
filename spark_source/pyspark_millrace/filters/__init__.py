"""Filters on records: said by the option ``filter`` or pushed down by Spark, applied before rows cross into the JVM.

- ``condition``: the conditions, without NOT: what is negated is turned round when it is made
- ``parsing``, ``pushed``: the option's text, and Spark's filters, to conditions
- ``literals``, ``binding``: values in the types of their columns
- ``evaluation``: which rows a condition is true for, as Spark would say
- ``bounds``: whether it can be true where columns lie within bounds
- ``row_filter``: both for the batches of a task

A condition is null where SQL says so, and a row stays only where it is true.
"""

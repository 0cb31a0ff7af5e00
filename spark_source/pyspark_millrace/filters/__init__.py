"""Filters on records: said by the option ``filter`` or pushed down by Spark, applied before rows cross into the JVM.

- ``expression``: the conditions, without NOT: what is negated is turned round when it is made
- ``parsing``, ``pushed``: the option's text, and Spark's filters, to conditions
- ``literals``, ``binding``: values in the types of their columns
- ``evaluation``: which rows a condition is true for, as Spark would say
- ``bounds``: whether it can be true where columns lie within bounds
- ``row_filter``: both for the batches of a task

A condition is null where SQL says so, and a row stays only where it is true.
"""

from pyspark_millrace.filters.expression import Expression, conjunction
from pyspark_millrace.filters.parsing import parse_filter
from pyspark_millrace.filters.row_filter import RowFilter, row_filter_of

__all__ = ["Expression", "RowFilter", "conjunction", "parse_filter", "row_filter_of"]

"""Steps: the operators of a plan at work, a step per module.

A step takes a batch of one bucket (``batch``, with its order in ``flow``), works on the bucket's stores, and returns a
batch. ``task`` runs the steps of a plan one after the other, and all runners run tasks. ``registry`` maps nodes to
steps.

* Streams: ``filter``, ``map``, ``map_values``, ``select_key``, ``passing``, ``topic_names``; ``predicates`` and
  ``results`` check user functions
* Processors: ``process`` with ``process_stores``, ``process_tables`` and ``punctuations``
* Sources: ``reader``, ``deserialization``, ``table_source``
* Aggregates: ``aggregate`` with ``accumulators``, ``lifting``, ``groups`` and ``partial_aggregate``
* Folds of Python functions: ``fold``, ``fold_time_windows``, ``fold_session_windows``, ``fold_sliding_windows``,
  ``named_folds``; ``window_assignment``
* Tables: ``table_rows``, ``table_groups``, ``suppress``, ``window_copy``, ``expiry``
* Joins: ``stream_stream_join``, ``stream_table_join``, ``table_table_join``, ``foreign_key_join``, ``joins``
* State: ``operator`` (the interface of steps), ``store``, ``packed_state``
"""

from millrace_streams.steps.operator import Operator
from millrace_streams.steps.registry import STATELESS, make_step

__all__ = ["STATELESS", "Operator", "make_step"]

"""Internals of ``millrace.clients.Consumer``.

* ``connections``    calls that a wake-up ends
* ``polling``        the steps of a poll, in order; ``assignment`` the assigned partitions
* ``group``          membership, commits and the listener
* ``fetcher``        prefetches data within a limit; ``direct_reads`` reads files instead
* ``partition``      position and fetched data of a partition; ``reader`` decodes the data
* ``records``        the result of ``poll``
* ``positions``      initial positions: committed offsets and resets
* ``epochs``         truncation detection after a change of the leader epoch
* ``interceptors``   an application's hooks for consumed and committed data
"""

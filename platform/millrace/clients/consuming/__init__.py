"""Internals of ``millrace.clients.Consumer``.

* ``signal``         the wait of the caller's thread, its wake-up, and the check for a single caller
* ``connections``    calls that a wake-up ends
* ``polling``        the steps of a poll, in order; ``assignment`` the assigned partitions
* ``group``          membership, commits and the listener
* ``fetcher``        prefetches data within a limit; ``direct_reads`` reads files instead
* ``partition``      position and fetched data of a partition; ``reader`` decodes the data
* ``records``        the result of ``poll``
* ``positions``      initial positions: committed offsets and resets
* ``subscription``   topics by name or pattern, and the topics that match now
* ``interceptors``   an application's hooks for consumed and committed data
"""

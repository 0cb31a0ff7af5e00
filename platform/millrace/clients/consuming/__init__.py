"""What a consumer is made of; ``millrace.clients.Consumer`` puts it together.

* ``signal``         where the caller's thread waits, how it is woken, and that it is the only one
* ``connections``    calls that a wake-up ends
* ``polling``        what happens in a poll, in its order; ``assignment`` the partitions that are read
* ``group``          membership, commits and the listener, around them
* ``fetcher``        keeps data coming, within a bound; ``direct_reads`` reads files instead
* ``partition``      where one partition is read, and what of it waits; ``reader`` takes that apart
* ``records``        what ``poll`` returns
* ``positions``      where reading goes on: committed offsets and resets
* ``subscription``   topics by name or pattern, and which they are now
* ``interceptors``   an application's own eyes and hands on what is consumed and committed
"""

"""What a consumer is made of; ``millrace.clients.Consumer`` puts it together.

* ``signal``         where the caller's thread waits, how it is woken, and that it is the only one
* ``connections``    calls that a wake-up ends
* ``fetcher``        keeps data coming, within a bound; ``replicas`` whom it asks, ``direct_reads`` files instead
* ``reader``         one partition's batches, as many rows at a time as are wanted; ``records`` what ``poll`` returns
* ``positions``      where reading goes on: committed offsets and resets
* ``subscription``   topics by name or pattern, and which they are now
* ``interceptors``   an application's own eyes and hands on what is consumed and committed
"""

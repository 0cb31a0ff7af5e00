"""Runners of a plan: Spark streaming, Spark batch, test driver.

``topology_test_driver`` needs neither Spark nor a broker. ``streaming_query`` and ``batch`` share ``source`` (reading
and packing), ``packed_rows`` (the form of batches within Spark) and ``delta`` (writing).

In a worker: ``worker`` runs stages, ``packed_task`` in Spark's state store and ``bucket_tasks`` across batches.
``references`` reads sources there. ``shuffle`` has rows between stages, ``spreading`` places buckets.

Output: ``results`` (counted), ``output``, ``sinks``, ``topic_rows``, ``dead_letters``.

``topology_test_driver_stores`` shows the stores of the test driver.
"""

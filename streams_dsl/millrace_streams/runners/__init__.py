"""Runners of a plan: Spark streaming, Spark batch, test driver.

``topology_test_driver`` needs neither Spark nor a broker. ``streaming_query`` and ``batch`` share ``source`` (reading
and packing), ``packed_rows`` (the form of batches within Spark) and ``delta`` (writing).
"""

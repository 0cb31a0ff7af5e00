"""Runners of a compiled plan: Spark as a stream, Spark as a batch, and the test driver.

``driver`` needs neither Spark nor a broker. ``stream`` and ``batch`` share ``source`` (reading and packing),
``packed_rows`` (the form of batches within Spark) and ``delta`` (writing).
"""

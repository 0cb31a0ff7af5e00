"""What carries a compiled plan out: Spark as a stream, Spark as a batch, or this process, for tests.

``driver`` needs neither Spark nor a broker; ``stream`` and ``batch`` share ``source`` (reading and packing),
``packed_rows`` (the form in which batches cross Spark) and ``delta`` (writing).
"""

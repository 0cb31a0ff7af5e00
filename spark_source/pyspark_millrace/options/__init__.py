"""The options of ``format("millrace")`` for reading: checked, and turned into frozen data, before anything starts.

* ``given``      options as Spark passes them, looked up one by one
* ``source``     every option of a read
* ``positions``  where a read starts and ends
* ``decoding``   ``decode``, ``decode.*`` and ``badRecords``
* ``limits``     how much goes into a micro-batch, and when one is worth starting
"""

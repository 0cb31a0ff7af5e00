"""Read options of ``format("millrace")``, checked and parsed before a query starts.

* ``given``      look-up of single options as Spark passes them
* ``source``     all options of a read
* ``positions``  start and end of a read
* ``decoding``   ``decode``, ``decode.*`` and ``badRecords``
* ``limits``     minimum and maximum size of a micro-batch
* ``reference``  the definitions: names, meanings, defaults
"""

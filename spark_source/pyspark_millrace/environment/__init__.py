"""What a driver's process needs around Spark: Java, JARs, a session, workers, errors that can be read.

* ``session``         ``session()``: a ready Spark session with Delta; ``spark_submit_command()``
* ``java_runtime, delta_jars, checkpoint_files``  what a session looks for before Spark does
* ``worker_daemon``   Spark's daemon of Python workers without its false alarms
* ``error_display``   our sentence in place of a JVM's stack
"""

"""Requirements of a driver process: Java, JARs, session, workers, readable errors.

* ``session``         ``session()``: a ready Spark session with Delta; ``spark_submit_command()``
* ``settings``        the settings of Spark that ``session()`` reads
* ``java_runtime, delta_jars, checkpoint_files``  checks of a session before Spark starts
* ``worker_daemon``   Spark's daemon of Python workers without false alarms
* ``error_display``   one sentence in place of the JVM's stack trace
* ``package``         millrace as a zip file for executors
"""

"""Reading of splits in tasks, as Arrow batches of Spark's schema.

* ``layout``         columns and row filter of a query, and their Spark schema
* ``task_planning``  ranges of offsets to tasks, on the driver
* ``tasks``          the input partition of a task, and its way to batches
* ``split_reader``   a split to batches, from segment files, the remote store or the network
* ``references``     a stream's splits as rows, for tasks behind a shuffle
* ``pacing``         rate limit of the tasks of a machine
* ``reports``        metrics of tasks for the driver
"""

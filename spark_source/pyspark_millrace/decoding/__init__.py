"""The option ``decode``: Avro, JSON and Protobuf payloads as columns.

Tasks decode payloads in Arrow.

* ``plan``          look-up of the schemas on the driver, which are sent to the tasks
* ``rows``          batches of keys and values to batches of columns; a bad record fails the task, becomes null or goes
  to a topic
* ``dead_letters``  the records of a dead-letter topic as a table
"""

"""The option ``decode``: Avro, JSON and Protobuf payloads of opaque topics as columns, read in the tasks in Arrow.

* ``plan``          their schemas found, on the driver's side: what travels to the tasks
* ``rows``          batches of keys and values to batches of columns; bad records failed, nulled or sent to a topic
* ``dead_letters``  what such a topic says of each record, for a table of them
"""

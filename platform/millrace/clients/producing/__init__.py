"""Internals of the producer.

* ``record_buffer``, ``chunk``  single records gathered into columns, and the outcome of each; ``accumulator`` forms
                                batches of them; ``batch_sending`` sends lists, ``table_sending`` sends tables
* ``batching``                  tables to batches: fit to the topic, divide, cut, build; ``batch_making`` by options
* ``partitioner``               Kafka's murmur2; ``partitioning`` the sticky partition (``adaptive`` to
                                queue sizes), and custom partitioners
* ``sender``, ``outgoing``      batches in order, in ``queues`` by partition; ``identity`` assigns sequence numbers for
                                deduplication; ``wire`` writes requests without copying
* ``transaction_state``         a transactional producer as a pure state machine; ``transactions`` drives it;
                                ``transaction_calls`` the calls of an application
* ``memory``, ``futures``, ``interceptors``, ``record_checks``
"""

"""What a producer is made of.

* ``record_buffer``, ``chunk``  single records gathered to columns, and the fate of each; ``accumulator`` when and how
                                they become batches; ``batch_sending`` does it for lists, ``table_sending`` for tables
* ``batching``                  tables to batches: fitted to the topic, divided, cut, built; ``batch_making`` by options
* ``partitioner``               Kafka's murmur2; ``partitioning`` the sticky partition, and partitioners of one's own
* ``sender``, ``outgoing``      batches in order; ``identity`` numbers them, so that repetitions are noticed; ``wire``
                                writes requests without copying
* ``transaction_state``         a transactional producer as a pure machine; ``transactions`` the machine in motion;
                                ``transaction_calls`` what an application calls
* ``memory``, ``futures``, ``interceptors``, ``record_checks``
"""

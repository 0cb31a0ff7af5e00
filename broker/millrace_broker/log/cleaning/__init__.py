"""Compaction, Kafka's ``LogCleaner`` with the semantics of 3.9.

Only the last record of each key stays.

* ``cleaner_manager``  the choice of the dirtiest log, and the cleanable part of a log
* ``cleaner``         the cleaning of one log in two passes: ``map_building``, then copying
* ``key_hashes``, ``offset_map``  the last offset of each key, vectorised
* ``batches``, ``batch_filter``, ``transactions``  the remaining records of each batch, with a rows or columnar body, or
  in old formats
* ``chunks``, ``columnar_bodies``, ``row_runs``  batches read together, and bodies without the removed records
* ``grouping``        segments grouped into one
* ``cleaned_segment_writer``  the files of that segment, which replaces the others (``segment_replacement``)
* ``partition_view``  a partition's log for the cleaner
* ``log_cleaner``, ``settings``, ``checkpoints``, ``statistics``  the log cleaner of a broker
"""

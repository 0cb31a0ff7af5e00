"""Compaction: of each key only the last record stays (Kafka's ``LogCleaner``, with the semantics of 3.9).

``candidates``      what of a log can be cleaned, and which log is dirtiest: decisions over figures
``cleaner``         the cleaning of one log, in two passes: ``map_building``, then copying
``key_hashes``, ``offset_map``  the last offset of each key, vectorised
``batches``, ``thinning``, ``transactions``  what stays of each batch, in either body and in old formats
``grouping``, ``swap``  segments into one, and into the place of the old ones so that a crash does no harm
``partition_view``  a partition as the cleaner sees it
``threads``, ``settings``, ``checkpoints``, ``statistics``  the cleaner of a broker
"""

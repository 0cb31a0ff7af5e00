"""Operations on a stopped topology's checkpoint: reset, rebuild, export.

* ``reset``    a new start, or chosen offsets, without state
* ``rebuild``  new state from the source topics, with which a changed topology resumes
* ``export``   stores as Parquet, JSON, or records of a topic
"""

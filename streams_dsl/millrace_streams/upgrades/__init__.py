"""What is done to a stopped topology's checkpoint when the topology or its past changes.

* ``reset``    back to the beginning, or to chosen offsets, without state
* ``rebuild``  state made anew from the source topics, for a changed topology to go on with where the old one was
* ``export``   stores as Parquet, JSON, or records of a topic
"""

"""Client side of share groups (KIP-932).

A share group delivers each record to one consumer.

* ``acknowledgements``  acquired records and their acknowledgements, pure
* ``membership``        join, heartbeats and leave, pure; ``member`` sends them
* ``fetching``          fetches from the group's coordinator, with acknowledgements
"""

"""Client side of share groups (KIP-932), which deliver each record to one consumer.

* ``acknowledgements``  acquired records and their acknowledgements, pure
* ``membership``        join, heartbeats and leave, pure; ``member`` sends them
* ``fetching``          fetches and acknowledgements to the share coordinator
"""

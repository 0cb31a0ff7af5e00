"""Client side of share groups (KIP-932): many consumers per partition, each record at one of them.

* ``acknowledgements``  acquired records and their acknowledgements, pure
* ``membership``        join, heartbeats and leave, pure; ``member`` sends them
* ``fetching``          fetches and acknowledgements to the share coordinator
"""

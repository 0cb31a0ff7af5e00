"""Being a member of a share group (KIP-932): many consumers on one partition, each record with one of them at a time.

* ``acknowledgements``  what a member has in hand, and what it says of it: pure
* ``membership``        joining, living and leaving by heartbeats: pure; ``member`` sends them
* ``fetching``          getting records and handing in acknowledgements, broker by broker
"""

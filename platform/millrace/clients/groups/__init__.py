"""Group administration: listing, description, lag, and offset resets.

* ``model``       descriptions of groups
* ``operations``  group operations of ``Admin``; ``share_operations`` those of share groups
* ``lag``         lag of a group in records, bytes and seconds
* ``resets``      target offsets of resets, as pure functions
"""

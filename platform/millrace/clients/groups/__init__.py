"""Groups as an administrator sees them: which there are, who is in them, how far they are, and setting that anew.

* ``model``       what is described
* ``operations``  what ``Admin`` does with groups
* ``lag``         how far a group is behind, in records, bytes and seconds
* ``resets``      where offsets go when they are reset: pure
"""

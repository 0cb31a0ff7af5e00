"""``millrace streams``: the state of topologies' checkpoints, on the command line.

``streams`` queries and compares, ``topologies`` shows, ``upgrades`` exports, rebuilds and resets. ``options`` are those
of several commands.
"""

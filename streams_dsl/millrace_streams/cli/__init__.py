"""``millrace streams``: the state of topologies' checkpoints, on the command line."""

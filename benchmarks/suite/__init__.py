"""One module per benchmark; each has a ``BENCHMARK``, and its name is the module's."""

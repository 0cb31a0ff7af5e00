"""The guided tour of ``millrace demo``, with real flights.

``datasets`` reads the data, and ``load`` writes it to topics. ``processes`` runs the broker and ``pipeline``, the
program of all queries. ``stages`` reports its progress, and ``view`` shows it. ``examples`` has data for ``jobs/``.
``report`` shows the results. ``tour`` runs all steps, and ``cli`` is the command.
"""

"""The guided tour of ``millrace demo``, with real flights.

``datasets`` reads the data, and ``load`` writes it to topics. ``processes`` runs the broker and the Spark jobs.
``report`` shows the results. ``tour`` runs all steps, and ``cli`` is the command.
"""

"""The guided tour behind ``millrace demo``: real flights through the log and Spark into Delta tables.

``datasets`` reads the data, ``load`` puts it into topics, ``processes`` runs the broker and the Spark jobs,
``report`` shows what came out, ``tour`` strings them together, ``cli`` is the command.
"""

"""Measure the speed of producers and consumers.

The output lines are those of Kafka's tools. ``produce``, ``consume`` and ``latency`` are the commands. ``statistics``
and ``consume_statistics`` compute their figures, and ``metrics`` prints those of the client.
"""

from millrace.cli.command_group import command_group
from millrace.cli.perf.consume import consume
from millrace.cli.perf.latency import latency
from millrace.cli.perf.produce import produce

app = command_group("Measure the speed of producers and consumers, with the output lines of Kafka's tools.")
app.command()(produce)
app.command()(consume)
app.command()(latency)

"""Real broker inside another program, for tests and notebooks.

``embedded`` has ``EmbeddedBroker``.
"""

from millrace_broker.testing.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]

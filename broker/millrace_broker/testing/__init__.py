"""Real broker inside another program, for tests and notebooks."""

from millrace_broker.testing.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]

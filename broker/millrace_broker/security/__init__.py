"""Identities of clients.

* ``principal``  ``KafkaPrincipal``, the identity that a listener found out, and ``ANONYMOUS``
"""

from millrace_broker.security.principal import ANONYMOUS, KafkaPrincipal

__all__ = ["ANONYMOUS", "KafkaPrincipal"]

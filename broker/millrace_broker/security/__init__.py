"""Identities and rights of clients, and the security of listeners.

* ``principal``   ``KafkaPrincipal``, the identity of an authenticated client, and ``ANONYMOUS``
* ``acl_index``   decisions of ACLs in memory
* ``acl_store``   ACLs in the metadata store
* ``authorizer``  ``Authorizer``, and ``AclAuthorizer``
* ``listeners``   security of one listener: certificates, and recognition of brokers
* ``certificates``  principals of client certificates
* ``sasl``        authentication by SASL: PLAIN, SCRAM and OAUTHBEARER
* ``tokens``      validation of OAUTHBEARER's tokens
* ``delegation_tokens``  tokens that users make, for clients without their password
"""

from millrace_broker.security.acl_index import AclIndex
from millrace_broker.security.acl_store import AclStore
from millrace_broker.security.authorizer import (
    ACL_AUTHORIZER,
    AclAuthorizer,
    AuthorizableRequest,
    Authorizer,
    decides_by_acls,
    may_be_open,
    open_authorizer,
)
from millrace_broker.security.delegation_tokens import DelegationTokens
from millrace_broker.security.listeners import (
    ListenerAccess,
    check_authorizer,
    check_plaintext,
    warn_of_open_zookeeper,
)
from millrace_broker.security.principal import ANONYMOUS, KafkaPrincipal
from millrace_broker.security.sasl import Logins, SaslConversation

__all__ = [
    "ACL_AUTHORIZER",
    "ANONYMOUS",
    "AclAuthorizer",
    "AclIndex",
    "AclStore",
    "AuthorizableRequest",
    "Authorizer",
    "DelegationTokens",
    "KafkaPrincipal",
    "ListenerAccess",
    "Logins",
    "SaslConversation",
    "check_authorizer",
    "check_plaintext",
    "decides_by_acls",
    "may_be_open",
    "open_authorizer",
    "warn_of_open_zookeeper",
]

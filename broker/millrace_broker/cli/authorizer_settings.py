"""Options of the brokers' authorizer, which decide beside the ACLs.

``millrace acls who`` reads them with DescribeConfigs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.config.authorization_options import AuthorizationOptions
from millrace.errors import MillraceError
from millrace_broker.security import decides_by_acls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millrace.clients import Admin

CLASS_NAME: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_IF_NO_ACL: Final = "allow.everyone.if.no.acl.found"
_OPTIONS: Final = (CLASS_NAME, SUPER_USERS, ALLOW_IF_NO_ACL)


@dataclass(frozen=True, slots=True)
class AuthorizerSettings:
    """Principals that may act without an ACL.

    The remark names a reason why the settings are incomplete.
    """

    super_users: tuple[str, ...] = ()
    allows_if_no_acl: bool = False
    remark: str = ""


def authorizer_settings(admin: Admin) -> AuthorizerSettings:
    """Return the settings of the brokers, as far as the client may describe them.

    The settings of another class than millrace's are unknown, and the remark names this class.
    """
    try:
        found = {
            broker.node_id: {
                name: value.value
                for name, value in admin.describe_configs(str(broker.node_id), resource="broker").items()
                if name in _OPTIONS
            }
            for broker in admin.describe_cluster().brokers
        }
    except MillraceError as error:
        return AuthorizerSettings(
            remark=f"super users and {ALLOW_IF_NO_ACL} are not shown, because the brokers' options cannot be "
            f"described: {error.message}"
        )
    shown = min(found)
    remark = ""
    if differing := [name for name in _OPTIONS if len({options.get(name) for options in found.values()}) > 1]:
        remark = f"the brokers differ in {' and '.join(differing)}: the table is of broker {shown}"
    return _settings(found[shown], remark)


def _settings(options: Mapping[str, str], remark: str) -> AuthorizerSettings:
    class_name = options.get(CLASS_NAME, "")
    if not decides_by_acls(class_name):
        other = f"{CLASS_NAME}={class_name} decides, and not only by ACLs: the table shows only the ACLs"
        return AuthorizerSettings(remark="; ".join(filter(None, (other, remark))))
    loaded = AuthorizationOptions.load({name: options[name] for name in _OPTIONS if name in options})
    return AuthorizerSettings(
        tuple(dict.fromkeys(loaded.super_user_principals)), loaded.allow_everyone_if_no_acl_found, remark
    )

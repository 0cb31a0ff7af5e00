"""Rules that make user names from Kerberos principals (``sasl.kerberos.principal.to.local.rules``).

Kafka's classes are ``KerberosRule`` and ``KerberosShortNamer``. A principal has a name, mostly a host, and a realm, as
in ``orders/shop.example@EXAMPLE``. The rule ``RULE:[2:$1-$0](.*-EXAMPLE)s/-EXAMPLE//L`` applies to principals with a
host. It makes ``orders-EXAMPLE`` of the name and the realm, removes the realm again, and makes the rest lower case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_RULE: Final = re.compile(
    r"(?P<default>DEFAULT)|RULE:\[(?P<components>[12]):(?P<form>[^\]]*)\](\((?P<match>[^)]*)\))?"
    r"(?P<edit>s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?"
)
_PRINCIPAL: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_COMPONENT: Final = re.compile(r"\$(\d+)")
_GROUP: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_NOT_A_NAME: Final = re.compile(r"[/@]")


class KerberosRule(NamedTuple):
    """One rule. The rule ``DEFAULT``, for the broker's realm, has no components."""

    components: int
    """1 for principals without a host, 2 for those with one."""
    form: str = ""
    """Text with ``$0`` for the realm, ``$1`` for the name, ``$2`` for the host."""
    match: str | None = None
    """Regular expression that the whole text must match; None for any text."""
    pattern: str | None = None
    """Regular expression of what is replaced in the text; None if nothing is."""
    replacement: str = ""
    replaces_all: bool = False
    case: str = ""
    """``L`` for lower case, ``U`` for upper case."""

    def apply(self, parts: Sequence[str]) -> str | None:
        """Return the name of a principal, whose ``parts`` begin with the realm; None if the rule does not apply."""
        if self.components != len(parts) - 1:
            return None
        text = _COMPONENT.sub(lambda found: parts[int(found[1])], self.form)
        if self.match is not None and re.fullmatch(self.match, text) is None:
            return None
        if self.pattern is not None:
            text = re.sub(self.pattern, self._expanded, text, count=0 if self.replaces_all else 1)
        return {"L": text.lower(), "U": text.upper()}.get(self.case, text)

    def _expanded(self, found: re.Match[str]) -> str:
        """Return the replacement with its references ``$1``, and ``\\$`` for a dollar, as in Java."""
        return _GROUP.sub(lambda part: part[1] or found[int(part[2])] or "", self.replacement)


def parse_kerberos_rules(text: str) -> list[KerberosRule]:
    """Parse ``sasl.kerberos.principal.to.local.rules``, with commas between the rules. Raises ``ValueError``."""
    return [_rule(each.strip()) for each in (text.strip() or "DEFAULT").split(",")]


def _rule(text: str) -> KerberosRule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no rule: expected DEFAULT or RULE:[n:text](match)s/pattern/replacement/g/L")
    if found["default"]:
        return KerberosRule(0)
    rule = KerberosRule(
        int(found["components"]),
        found["form"],
        found["match"],
        found["pattern"],
        found["replacement"] or "",
        bool(found["all"]),
        found["case"] or "",
    )
    missing = [number for number in _COMPONENT.findall(rule.form) if int(number) > rule.components]
    if missing:
        raise ValueError(f"{text!r} has ${missing[0]}, and principals of this rule have {rule.components} components")
    try:
        re.compile(rule.match or "")
        groups = re.compile(rule.pattern or "").groups
    except re.error as error:
        raise ValueError(f"{text!r} has no regular expression: {error}") from None
    unknown = [number for _, number in _GROUP.findall(rule.replacement) if number and int(number) > groups]
    if unknown:
        raise ValueError(f"{text!r} replaces by ${unknown[0]}, and its pattern has {groups} groups")
    return rule


def user_of(principal: str, realm: str, rules: Sequence[KerberosRule]) -> str:
    """Return the user name of a principal by the first rule that applies. ``realm`` is the broker's.

    Raises ``ValueError`` if no rule applies, or if the principal or the name is malformed.
    """
    found = _PRINCIPAL.fullmatch(principal)
    if found is None:
        raise ValueError(f"{principal} is no principal of the form name/host@REALM")
    name, host, own_realm = found.groups()
    for rule in rules:
        if not rule.components:
            user = name if own_realm == realm else None
        else:
            user = rule.apply([own_realm, name] if host is None else [own_realm, name, host])
        if user is None:
            continue
        if not user or _NOT_A_NAME.search(user):
            raise ValueError(f"sasl.kerberos.principal.to.local.rules makes {user!r} of {principal}, which is no name")
        return user
    raise ValueError(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal}")

"""Tests of the rules that make user names from Kerberos principals."""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace.config.kerberos_rules import parse_kerberos_rules, user_of
from millrace.errors import InvalidConfigError

REALM = "SHOP.EXAMPLE"
OTHER = "PARTNER.EXAMPLE"


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        ("", f"orders@{REALM}", "orders"),
        ("DEFAULT", f"orders/web.example@{REALM}", "orders"),
        ("RULE:[1:$1]", f"orders@{OTHER}", "orders"),
        ("RULE:[1:$1@$0](.*@PARTNER\\.EXAMPLE)s/@.*//", f"orders@{OTHER}", "orders"),
        ("RULE:[1:$0-$1]", f"orders@{OTHER}", f"{OTHER}-orders"),
        ("RULE:[2:$1-$2]", f"orders/web.example@{OTHER}", "orders-web.example"),
        ("RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g", f"App.orders@{REALM}", "orders"),
        ("RULE:[1:$1]s/o/0/", f"foo@{REALM}", "f0o"),
        ("RULE:[1:$1]s/o/0/g", f"foo@{REALM}", "f00"),
        ("RULE:[1:$1]s/(f)(o)/$2$1\\$/", f"foo@{REALM}", "of$o"),
        ("RULE:[1:$1]s/(f)|(x)/[$2]/", f"foo@{REALM}", "[]oo"),
        ("RULE:[1:$1]/L", f"Orders@{REALM}", "orders"),
        ("RULE:[2:$1](Web.*)s/XYZ///U", f"WebXYZ/host@{REALM}", "WEB"),
        ("RULE:[1:fixed]", f"orders@{REALM}", "fixed"),
        ("RULE:[2:$1](a.*),RULE:[2:$1-b], DEFAULT", f"c/host@{REALM}", "c-b"),
        ("RULE:[2:$1](a.*),DEFAULT", f"c@{REALM}", "c"),
    ],
)
def test_the_first_rule_that_applies_makes_the_name(rules: str, principal: str, user: str) -> None:
    assert user_of(principal, REALM, parse_kerberos_rules(rules)) == user


@pytest.mark.parametrize(
    ("rules", "principal", "reason"),
    [
        ("DEFAULT", f"orders@{OTHER}", "no rule of sasl.kerberos.principal.to.local.rules applies to orders@PARTNER"),
        ("RULE:[1:$1]", f"orders/host@{REALM}", "no rule"),
        ("RULE:[1:$1](a.*)", f"ba@{REALM}", "no rule"),
        ("RULE:[1:$1@$0]", f"orders@{REALM}", "which is no name"),
        ("RULE:[2:$1/$2]", f"orders/host@{REALM}", "which is no name"),
        ("RULE:[1:$1]s/.*//", f"orders@{REALM}", "which is no name"),
        ("DEFAULT", "orders", "no principal of the form"),
        ("DEFAULT", f"a/b/c@{REALM}", "no principal of the form"),
    ],
)
def test_a_principal_without_a_rule_or_a_plain_name_is_refused(rules: str, principal: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        user_of(principal, REALM, parse_kerberos_rules(rules))


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "rule:[1:$1]",
        "RULE:[1:$1]/LU",
        "RULE:[1:$1]/L/U",
        "RULE:[1:$1/L",
        "RULE:[1:$1]/l",
        "RULE:[2:$1](a.*)s/a/b/L/g",
        "RULE:[3:$1]",
        "RULE:[:$1]",
        "RULE:[1:$2]",
        "RULE:[1:$1]([)",
        "RULE:[1:$1]s/a/$1/",
        "DEFAULT,",
    ],
)
def test_malformed_rules_are_refused_when_the_broker_starts(rules: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"sasl\.kerberos\.principal\.to\.local\.rules"):
        BrokerConfig.load({"sasl.kerberos.principal.to.local.rules": rules})

"""Tests of principals of certificates. The rules and names are those of Kafka's ``SslPrincipalMapperTest``."""

from __future__ import annotations

import pytest

from millrace.config.security_options import ListenerSecurity, parse_mapping_rules
from millrace.errors import InvalidConfigError, SslAuthenticationError
from millrace_broker.security import KafkaPrincipal
from millrace_broker.security.certificates import principal_of

RULES = ", ".join(
    (
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("CN=Duke.Admin,OU=JavaSoft,O=Sun Microsystems", "DUKE.ADMIN"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_decides(name: str, principal: str) -> None:
    assert principal_of(name, parse_mapping_rules(RULES)) == KafkaPrincipal("User", principal)


def test_a_reference_without_a_group_is_literal() -> None:
    rules = parse_mapping_rules("RULE:^CN=(.*?),.*$/$1-$9/")
    assert principal_of("CN=a,O=b", rules).name == "a-$9"


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(SslAuthenticationError, match=r"matches the certificate of OU=x: add a rule, or DEFAULT"):
        principal_of("OU=x", parse_mapping_rules("RULE:^CN=(.*)$/$1/"))


@pytest.mark.parametrize(
    "rules",
    ["default", "DEFAUL", "DEFAULT/L", "RULE:CN=(.*?)/$1", "RULE:^CN=(.*?)/$1/LU", "RULE:(/$1/", "DEFAULT RULE:a/b/"],
)
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules"):
        ListenerSecurity.load({"ssl.principal.mapping.rules": rules})

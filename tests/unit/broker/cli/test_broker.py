"""Tests of the configuration of ``millrace broker``."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import InvalidConfigError
from millrace_broker.cli.broker import load_config

from ....planted_secrets import planted
from ....properties_files import write_properties


def test_references_in_the_file_and_on_the_command_line_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "zookeeper.secret").write_text(planted("zookeeper"))
    write_properties(tmp_path / "secrets.properties", {"token-key": planted("key")})
    write_properties(
        tmp_path / "broker.properties",
        {
            "delegation.token.secret.key": f"${{file:{tmp_path}/secrets.properties:token-key}}",
            "zookeeper.connect": "localhost",
            "zookeeper.sasl.mechanism": "DIGEST-MD5",
            "zookeeper.sasl.username": "broker",
        },
    )
    reference = f"${{directory:{tmp_path}:zookeeper.secret}}"
    options = [f"zookeeper.sasl.password={reference}"]
    config = load_config(tmp_path / "broker.properties", data_dir=None, listen=None, options=options)
    assert config.delegation_token_secret_key == planted("key")
    assert config.zookeeper_config is not None
    assert config.zookeeper_config.zookeeper_sasl_password == planted("zookeeper")


def test_a_reference_without_a_target_is_refused(tmp_path: Path) -> None:
    write_properties(tmp_path / "broker.properties", {"delegation.token.secret.key": f"${{directory:{tmp_path}:none}}"})
    with pytest.raises(InvalidConfigError, match=r"delegation\.token\.secret\.key=.* cannot be resolved"):
        load_config(tmp_path / "broker.properties", data_dir=None, listen=None, options=[])

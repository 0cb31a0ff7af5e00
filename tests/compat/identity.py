"""Suite ``identity``, logins by the servers of other makers.

The suite has Keycloak for OAUTHBEARER, and the KDC of MIT Kerberos for GSSAPI. It runs against millrace alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from . import install
from .brokers import Listeners
from .ledger import Result
from .pytest_run import run_pytest

_ROOT = Path(__file__).parents[2]
_KERBEROS = "tests/integration/test_kerberos.py"
_KDC = ("krb5-kdc", "krb5-admin-server", "krb5-user", "libkrb5-dev", "gcc")
"""Debian packages of the KDC, and of the package gssapi, which is compiled."""


def run(_: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run the tests, all or those that match ``only``. They start brokers of their own."""
    if kind == "kafka":
        return {}
    install.debian(*_KDC)
    gssapi = install.made_once("gssapi", _compile)
    return run_pytest(
        sys.executable,
        ["-p", "no:randomly", "--quiet", _KERBEROS, "tests/compat/keycloak_tests.py", *(["-k", only] if only else [])],
        cwd=_ROOT,
        name="identity",
        seconds_max=1800,
        PYTHONPATH=str(gssapi),
    )


def _compile(folder: Path) -> None:
    constraints = ["--constraint", _ROOT / "constraints.txt"]
    install.run([sys.executable, "-m", "pip", "install", "--quiet", *constraints, "--target", folder, "gssapi"])

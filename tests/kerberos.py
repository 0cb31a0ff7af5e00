"""A Kerberos realm for tests.

The realm is a KDC of MIT Kerberos on loopback, with keytabs of its principals.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .ports import free_port

REALM = "MILLRACE.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")
_PATHS = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"


def is_installed() -> bool:
    """Return whether this machine has a KDC and the package gssapi."""
    try:
        import gssapi  # noqa: F401
    except ImportError:
        return False
    return all(shutil.which(each, path=_PATHS) for each in PROGRAMS)


@dataclass(frozen=True)
class Realm:
    """A running KDC. ``environment`` makes a process use it."""

    directory: Path
    environment: dict[str, str]

    def keytab(self, principal: str) -> str:
        """Add a principal, and return its keytab."""
        path = self.directory / f"{principal.replace('/', '-')}.keytab"
        for query in (f"addprinc -randkey {principal}", f"ktadd -k {path} {principal}"):
            self.run("kadmin.local", "-q", query)
        return str(path)

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of Kerberos to its end."""
        found = shutil.which(program, path=_PATHS)
        assert found is not None
        subprocess.run([found, *arguments], env=os.environ | self.environment, check=True, capture_output=True)


@contextmanager
def running(directory: Path) -> Iterator[Realm]:
    """Run a KDC, and let this process use it."""
    port = free_port()
    (directory / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n"
        f" dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
    )
    (directory / "kdc.conf").write_text(
        f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n"
        f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n  key_stash_file = {directory}/stash\n }}\n"
    )
    environment = {
        "KRB5_CONFIG": str(directory / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
        "KRB5CCNAME": f"FILE:{directory}/tickets",
        "KRB5RCACHENAME": "none:",
    }
    realm = Realm(directory, environment)
    realm.run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
    program = shutil.which("krb5kdc", path=_PATHS)
    assert program is not None
    before = {name: os.environ.get(name) for name in environment}
    with (directory / "kdc.log").open("wb") as log:
        kdc = subprocess.Popen(
            [program, "-n"],
            env=os.environ | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    os.environ.update(environment)
    try:
        yield realm
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        kdc.terminate()
        kdc.wait()

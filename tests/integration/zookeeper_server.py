"""A real ZooKeeper on loopback, a proxy, and session expiry.

The proxy can cut connections.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import re
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import jars
from benchmarks.workspace import Workspace
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from kazoo.client import KazooClient

from millrace.coordination.zookeeper import ZooKeeperCoordination

from ..planted_secrets import planted
from ..ports import free_port
from ..properties_files import write_properties
from .waiting import AN_HOUR_MS, STALL_S, eventually

TICK_MS = 100
SESSION_MS = 2_000
CONNECTION_MS = 20_000
USER, PASSWORD = "broker", planted("horse-battery")
_START_ATTEMPTS = 3
_PING_BYTES = 20


class ZooKeeperServer:
    """A server with an empty tree, in a JVM.

    ``address`` accepts unknown clients and ``USER``, who authenticates by SASL (DIGEST-MD5). ``secure_address`` accepts
    clients with a certificate of the authority in ``authority``, such as ``certificate``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = self._secure_port = 0
        self.authority, self.certificate = folder / "authority.pem", folder / "certificate.pem"

    def __enter__(self) -> ZooKeeperServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        _make_certificates(self.authority, self.certificate)
        for _ in range(_START_ATTEMPTS):  # another process may take the ports before they are bound
            self.port, self._secure_port = free_port(), free_port()
            if self.start():
                return self
        raise AssertionError(f"ZooKeeper does not start:\n{self._log.read_text()[-3000:]}")

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_address(self) -> str:
        return f"127.0.0.1:{self._secure_port}"

    @property
    def _log(self) -> Path:
        return self._folder / "zookeeper.log"

    def start(self) -> bool:
        """Start the server at its port, on the content of its folder. Return False if it ended."""
        settings = {
            "tickTime": str(TICK_MS),
            "maxSessionTimeout": str(AN_HOUR_MS),
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,dump",
            "dataDir": str(self._folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "secureClientPort": str(self._secure_port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(self.certificate),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(self.authority),
            "ssl.trustStore.type": "PEM",
            "ssl.hostnameVerification": "false",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        conf, jaas = self._folder / "zoo.cfg", self._folder / "jaas.conf"
        write_properties(conf, settings)
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        jaas.write_text(f'Server {{ {module} required user_{USER}="{PASSWORD}"; }};\n')
        (self._folder / "logback.xml").write_text(
            '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>'
            "<pattern>%d %p %m%n</pattern></encoder></appender>"
            '<root level="INFO"><appender-ref ref="out"/></root></configuration>'
        )
        classes = f"{self._folder}:{jars.resolve(jars.ZOOKEEPER, Workspace())}/*"
        command = ["java", "-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += [f"-Djava.security.auth.login.config={jaas}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", classes, "org.apache.zookeeper.server.ZooKeeperServerMain", str(conf)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        process = self._process
        eventually(lambda: process.poll() is not None or self._is_well())
        return process.poll() is None

    def stop(self) -> None:
        """Kill the server. All answered changes are in its folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STALL_S)
            self._process = None

    def sessions(self) -> set[int]:
        """Return the ids of the sessions that have not ended."""
        listed = self._say(b"dump").partition("ephemeral nodes dump")[0]
        return {int(each, 16) for each in re.findall(r"0x([0-9a-f]+)", listed)}

    def _is_well(self) -> bool:
        try:
            return self._say(b"ruok") == "imok"
        except OSError:
            return False

    def _say(self, word: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self.port), STALL_S) as connection:
            connection.sendall(word)
            with connection.makefile("rb") as answer:
                return answer.read().decode()


@contextlib.contextmanager
def zookeeper_client(hosts: str) -> Iterator[KazooClient]:
    """Open a session that is no broker's. ``hosts`` includes the chroot."""
    client = KazooClient(hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def expire(session: ZooKeeperCoordination) -> None:
    """Expire a session at the server, which informs the session."""
    expiry_of(session)()


def expiry_of(session: ZooKeeperCoordination) -> Callable[[], None]:
    """Return a function that expires a session.

    It opens a second connection with the session's id and password and closes it.
    """
    address, client_id = session._config.address.hosts, session._link.client.client_id

    def end(address: str = address) -> None:
        second = KazooClient(address, timeout=SESSION_MS / 1000, client_id=client_id)
        second.start()
        second.stop()
        second.close()

    return end


class Proxy:
    """A proxy between clients and a server.

    ``cut`` ends all connections and refuses new ones until ``heal``. ``swallow_answers`` drops the server's answers
    (except pings) and then the connection, so that a request is carried out without an answer.
    """

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._cut = False
        self.swallow_answers = False
        self.swallowed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        with self._lock:
            self._cut = True
            self._drop()

    def heal(self) -> None:
        with self._lock:
            self._cut = self.swallow_answers = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _drop(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._cut or self._closed:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._server, STALL_S)
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
                self._start(self._pump, client, server)

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    data = source.recv(65536)
                    if source is server and self.swallow_answers and len(data) != _PING_BYTES:
                        self.swallowed.set()
                        return
                    if not data:
                        return
                    (server if source is client else client).sendall(data)


@contextlib.contextmanager
def proxy_to(server: ZooKeeperServer) -> Iterator[Proxy]:
    """Start a proxy before ``server``."""
    proxy = Proxy(server.port)
    try:
        yield proxy
    finally:
        proxy.close()


def _make_certificates(authority: Path, certificate: Path) -> None:
    """Create an authority and a certificate that it signed for 127.0.0.1, with its key in the same file."""
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: str, key: Any, issuer: str, issuer_key: Any, *, is_authority: bool) -> x509.Certificate:
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=1),
            not_valid_after=now + datetime.timedelta(days=1),
        )
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(issuer_key, hashes.SHA256())

    root_key, key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    root = signed("authority", root_key, "authority", root_key, is_authority=True)
    own = signed("broker", key, "authority", root_key, is_authority=False)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    certificate.write_bytes(key.private_bytes(*form) + own.public_bytes(serialization.Encoding.PEM))

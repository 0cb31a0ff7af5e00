"""A broker and its clients as processes.

The processes are started, killed and restarted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from ..integration.waiting import STALL_S

ROOT: Final = Path(__file__).resolve().parents[2]
MILLRACE: Final = Path(sys.executable).with_name("millrace")


class BrokerProcess:
    """``millrace broker``, always at the same address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Start the broker, and wait until it listens."""
        command = [str(MILLRACE), "broker", "--data-dir", str(self._directory / "data"), "--listen", self.address]
        with (self._directory / "broker.stderr").open("a") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "listening on" in line, (self._directory / "broker.stderr").read_text()
        self.address = line.rpartition(" ")[2].strip()

    def end(self, number: signal.Signals) -> None:
        """Kill the broker, or stop it cleanly."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        self._process.wait(STALL_S)
        self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        """Tell whether the broker runs."""
        return self._process is not None and self._process.poll() is None


class ClientProcess:
    """One client and its successors, each with its own record."""

    def __init__(self, role: str, number: int, address: str, directory: Path, topics: list[str]) -> None:
        self.role = role
        self.slot = f"{role}-{number}"
        self._address = address
        self._directory = directory
        self._topics = topics
        self._incarnation = 0
        self.start()

    def start(self) -> None:
        """Start the client or its next successor."""
        self._incarnation += 1
        self.record = self._directory / f"{self.slot}-{self._incarnation}.jsonl"
        module = "tests.histories.clients"
        arguments = [self.role, self._address, str(self.record), "--slot", self.slot, "--topics", *self._topics]
        with (self._directory / "clients.stderr").open("a") as errors:
            self._process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT, stderr=errors)

    def end(self, number: signal.Signals) -> int:
        """Kill the client, or let it end. Return its exit status."""
        self._process.send_signal(number)
        return self._process.wait(STALL_S)

    @property
    def has_ended(self) -> bool:
        """Tell whether the client has ended by itself."""
        return self._process.poll() is not None

    @property
    def size_bytes(self) -> int:
        """Return the size of its record."""
        return self.record.stat().st_size if self.record.exists() else 0

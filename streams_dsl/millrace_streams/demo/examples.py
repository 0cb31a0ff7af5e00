"""Example data for the applications in ``jobs/``, generated from a seed.

Rows are in order of arrival, with the irregularities of real data. Frequencies of words and addresses follow Zipf's
law. A few addresses attack, some log lines are late or broken, and prices follow random walks. The same name, number of
rows and seed always give the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.schemas import parse_schema

_START: Final = datetime(2024, 3, 4, 9, tzinfo=UTC)
_SYLLABLES: Final = ("ka", "lo", "mi", "ra", "te", "su", "no", "vel", "dor", "an", "is", "ur")
_PATHS: Final = ("/", "/index.html", "/cart", "/search", "/login", "/api/items", "/images/logo.png", "/about")
_STATUSES: Final = (200, 304, 301, 404, 403, 500)
_STATUS_SHARES: Final = (0.82, 0.06, 0.03, 0.06, 0.02, 0.01)
_AGENTS: Final = ("Mozilla/5.0", "curl/8.5.0", "Googlebot/2.1")
_DAY_MS: Final = 86_400_000

Random = np.random.Generator
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Rows for one topic. ``time_column`` has the records' timestamps; None means the time of the load."""

    schema: str
    key_columns: tuple[str, ...]
    time_column: str | None
    make: Callable[[int, Random], dict[str, object]]

    def table(self, rows: int, seed: int) -> pa.Table:
        """Return the first ``rows`` rows of a seed."""
        return pa.table(self.make(rows, np.random.default_rng(seed)), schema=parse_schema(self.schema))


def _vocabulary(size: int) -> list[str]:
    """Return words of two to four syllables, in a fixed order."""
    random = np.random.default_rng(size)
    words: dict[str, None] = {}
    while len(words) < size:
        words["".join(random.choice(_SYLLABLES, random.integers(2, 5)))] = None
    return list(words)


def _zipf(random: Random, kinds: int, size: int, *, begin: int = 1) -> Numbers:
    """Return numbers below ``kinds`` with frequencies 1/n, where n starts at ``begin``; a larger start is flatter."""
    shares = 1.0 / np.arange(begin, kinds + begin)
    return random.choice(kinds, size, p=shares / shares.sum()).astype(np.int64)


def _times(random: Random, rows: int, per_second: float) -> Numbers:
    """Return ascending times in ms, with an average number per second."""
    gaps = random.exponential(1000 / per_second, rows)
    return round(_START.timestamp() * 1000) + np.cumsum(gaps).astype(np.int64)


def _instants(times_ms: Numbers) -> pa.Array:
    return pa.array(times_ms * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))


def _texts(random: Random, rows: int, words: list[str], longest: int) -> list[str]:
    lengths = random.integers(1, longest + 1, rows)
    chosen = iter(_zipf(random, len(words), int(lengths.sum())).tolist())
    return [" ".join(words[next(chosen)] for _ in range(length)) for length in lengths.tolist()]


def _lines(rows: int, random: Random) -> dict[str, object]:
    texts = _texts(random, rows, _vocabulary(2000), 12)
    return {"line": [f"{text.capitalize()}." for text in texts]}


def _requests(rows: int, random: Random) -> dict[str, object]:
    times = _times(random, rows, 40)
    address = _zipf(random, 400, rows, begin=40) + 16
    # From time to time one of a few addresses sends every other request for a while.
    attack = (np.arange(rows) // 400 % 5 == 3) & (random.random(rows) < 0.5)
    address = np.where(attack, np.arange(rows) // 2000 % 7, address)
    return {
        "time": _instants(times),
        "address": [f"10.{number >> 8}.{number & 255}.7" for number in address.tolist()],
        "method": random.choice(["GET", "GET", "GET", "POST"], rows).tolist(),
        "path": random.choice(_PATHS, rows).tolist(),
        "status": pa.array(random.choice(_STATUSES, rows, p=_STATUS_SHARES), pa.int32()),
        "bytes": random.integers(200, 40_000, rows),
    }


def _searches(rows: int, random: Random) -> dict[str, object]:
    words = _vocabulary(600)
    texts = _texts(random, rows, words, 3)
    # Trends change: at intervals another word is in a third of all searches.
    hot = (np.arange(rows) // 500 * 37 % len(words)).tolist()
    adds = random.random(rows) < 0.3
    return {
        "time": _instants(_times(random, rows, 5)),
        "user": [f"user{number}" for number in random.integers(0, 5000, rows)],
        "query": [f"{words[word]} {text}" if add else text for text, word, add in zip(texts, hot, adds, strict=True)],
    }


def _prices(rows: int, random: Random) -> dict[str, object]:
    symbols = [word[:4].upper() for word in _vocabulary(40)]
    symbols = list(dict.fromkeys(symbols))
    symbol = random.integers(0, len(symbols), rows)
    steps = random.normal(0, 0.01, rows)
    price = np.empty(rows)
    for number in range(len(symbols)):
        own = np.flatnonzero(symbol == number)
        price[own] = np.round((20 + 5 * number) * np.exp(np.cumsum(steps[own])), 2)
    # Twenty days for any number of rows.
    times = np.sort(random.integers(0, 20 * _DAY_MS, rows)) + round(_START.timestamp() * 1000)
    return {
        "time": _instants(times),
        "symbol": [symbols[number] for number in symbol.tolist()],
        "price": price,
        "volume": random.integers(1, 500, rows) * 10,
    }


def _log_lines(rows: int, random: Random) -> dict[str, object]:
    requests = _requests(rows, random)
    times = _times(random, rows, 20)
    # One in fifty lines is up to twenty seconds late; one in a hundred is cut off.
    times = times - np.where(random.random(rows) < 0.02, random.integers(0, 20_000, rows), 0)
    agents = random.choice(_AGENTS, rows).tolist()
    broken = (random.random(rows) < 0.01).tolist()
    lines = []
    for row, time_ms in enumerate(times.tolist()):
        time = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        status = requests["status"][row]  # type: ignore[index]
        asked = f"{requests['method'][row]} {requests['path'][row]} HTTP/1.1"  # type: ignore[index]
        size = "-" if status.as_py() == 304 else requests["bytes"][row]  # type: ignore[index]
        line = f'{requests["address"][row]} - - [{time}] "{asked}" {status} {size} "-" "{agents[row]}"'  # type: ignore[index]
        lines.append(line[: len(line) // 2] if broken[row] else line)
    return {"line": lines}


_REQUESTS: Final = (
    "time TIMESTAMP NOT NULL, address STRING NOT NULL, method STRING, path STRING, status INT, bytes BIGINT"
)
_PRICES: Final = "time TIMESTAMP NOT NULL, symbol STRING NOT NULL, price DOUBLE NOT NULL, volume BIGINT"

EXAMPLES: Final[dict[str, Example]] = {
    "lines": Example(schema="line STRING", key_columns=(), time_column=None, make=_lines),
    "requests": Example(schema=_REQUESTS, key_columns=("address",), time_column="time", make=_requests),
    "searches": Example(
        schema="time TIMESTAMP NOT NULL, user STRING, query STRING NOT NULL",
        key_columns=(),
        time_column="time",
        make=_searches,
    ),
    "prices": Example(schema=_PRICES, key_columns=("symbol",), time_column="time", make=_prices),
    "log_lines": Example(schema="line STRING NOT NULL", key_columns=(), time_column=None, make=_log_lines),
}
"""Examples by topic."""

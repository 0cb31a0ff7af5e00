"""Cases for decoders, and the rules for all of them.

A decoder returns a result or an error of ours, in bounded time and memory. ``FUZZ_CASES`` sets the number of cases for
each decoder (a soak: 1000000). ``FUZZ_SEED`` selects the cases; without it they differ at each run. A failure names the
case: ``FUZZ_SEED=<seed> FUZZ_FIRST=<number> FUZZ_CASES=1`` runs it alone.
"""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Callable
from random import Random, SystemRandom

from millrace.errors import MillraceError

CASES = int(os.environ.get("FUZZ_CASES", "1500"))
SEED = os.environ.get("FUZZ_SEED") or str(SystemRandom().getrandbits(32))
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
BYTES_MAX = 2**18
GROWTH_BYTES_MAX = 2**28
CASE_LOOPS_MAX = 1000
"""The CPU time that a case may take, in loops over a million numbers. One loop takes tens of milliseconds."""
EDGES = [0, 1, 0x7F, 0x80, 0xFF]
LARGE = [b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x00\x00\x00", bytes(8), b"\xff" * 10]

Decoder = Callable[[Random], None]


def mutated(random: Random, seeds: list[bytes]) -> bytearray:
    """Mutate one of the seeds in a few places. One case in twenty is random bytes instead."""
    if random.random() < 0.05:
        return bytearray(random.randbytes(random.randrange(200)))
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice([1, 1, 1, 2, 3, 8])):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = random.choice(EDGES)
        elif kind == 2:
            large = random.choice(LARGE)
            data[at : at + len(large)] = large
        elif kind == 3:
            del data[at : at + random.randrange(1, 9)]
        elif kind == 4:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        elif kind == 5:
            other = random.choice(seeds)
            start = random.randrange(len(other))
            piece = other[start : start + random.randrange(1, 64)]
            data[at : at + len(piece)] = piece
        elif random.random() < 0.3:
            del data[at:]
    return data


def decoder_name(decode: Decoder) -> str:
    """Return the name of the decoder's test."""
    return decode.__name__.removeprefix("decode_")


@functools.cache
def loop_seconds() -> float:
    """Return the CPU time that this machine takes for a loop over a million numbers."""
    started = time.process_time()
    for _ in range(1_000_000):
        pass
    return time.process_time() - started


def fuzz(decode: Decoder, *, refuses: bool = True) -> None:
    """Give a decoder its cases, from a random number generator for each. At least one of many cases is refused."""
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    refused = 0
    for number in range(FIRST, FIRST + CASES):
        case = f"{decode.__name__}: FUZZ_SEED={SEED} FUZZ_FIRST={number} FUZZ_CASES=1"
        started = time.process_time()
        try:
            decode(Random(f"{decode.__name__} {SEED} {number}"))
        except MillraceError:
            refused += 1
        except Exception as error:
            error.add_note(case)
            raise
        assert time.process_time() - started < CASE_LOOPS_MAX * loop_seconds(), case
    assert bool(refused) == refuses or CASES < 100
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - memory_before
    assert growth < GROWTH_BYTES_MAX, f"FUZZ_SEED={SEED}"

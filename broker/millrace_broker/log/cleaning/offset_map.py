"""The last offset of each key: what a cleaning knows of the dirty part of a log.

A hash table of fixed size in one numpy array, searched and filled for many keys at once: open addressing, whose probes
advance by a step of the key's own. An entry is 24 bytes, as in Kafka's ``SkimpyOffsetMap``: the key's 128-bit hash
(``key_hashes`` says how unlikely it is that two keys share one) and its offset. In each round all keys that have not
found their place look at one entry; after a few rounds none is left.

Invariants:

- offsets are put in ascending order, so that an entry's offset only grows;
- ``len`` never exceeds the load factor's part of the slots: from then on nothing more is taken.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from millrace_broker.log.cleaning.key_hashes import Hashes

ENTRY_BYTES: Final = 24
"""Memory of a slot."""
_OFFSET: Final = 2
_SLOTS_MIN: Final = 1024
_SPARE: Final = 2
"""A map for few records is made this many times larger than they need, for fewer collisions, but not larger."""
_ABSENT: Final = -1

Longs = npt.NDArray[np.int64]


class OffsetMap:
    """Maps hashes of keys to offsets. ``latest_offset`` is the last one that the map takes account of, -1 at first."""

    def __init__(self, slots: int, load_factor: float, *, expected_max: int | None = None) -> None:
        """Make a map that takes ``slots * load_factor`` keys; no more memory is taken than ``expected_max`` need."""
        self.capacity: Final = max(int(slots * load_factor), 1)
        wanted = slots if expected_max is None else min(slots, max(_SPARE * expected_max, _SLOTS_MIN))
        # A prime number of slots: every step then visits all of them. One more than the keys, so that searches end.
        self._slots: Final = _prime_from(max(wanted, min(self.capacity, wanted) + 1, 3))
        self._table: Final = np.zeros((self._slots, 3), np.uint64)
        self._size = 0
        self.latest_offset = _ABSENT

    def __len__(self) -> int:
        return self._size

    @property
    def utilization(self) -> float:
        """Part of the keys that fit which are there."""
        return self._size / self.capacity

    def put(self, hashes: Hashes, offsets: Longs) -> int:
        """Take in keys with their offsets, which ascend; returns how many were taken before the map was full.

        Once it is full not even a key that it has is taken (Kafka's ``buildOffsetMapForSegment``).
        """
        count = len(hashes)
        if self._size + count > self.capacity:
            count = self._count_that_fit(hashes)
        if count:
            self._insert(hashes[:count], offsets[:count])
            self.latest_offset = int(offsets[count - 1])
        return count

    def find(self, hashes: Hashes) -> Longs:
        """The offset of each key, -1 for one that is not there."""
        found = np.full(len(hashes), _ABSENT, np.int64)
        rows = np.arange(len(hashes))
        slots, steps = self._probes(hashes)
        while rows.size:
            entries = self._table[slots[rows]]
            is_taken = entries[:, _OFFSET] != 0
            is_same = is_taken & (entries[:, 0] == hashes[rows, 0]) & (entries[:, 1] == hashes[rows, 1])
            found[rows[is_same]] = entries[is_same, _OFFSET].astype(np.int64) - 1
            rows = rows[is_taken & ~is_same]
            slots[rows] = (slots[rows] + steps[rows]) % self._slots
        return found

    def _count_that_fit(self, hashes: Hashes) -> int:
        """How many keys are looked at before the one that finds the map full."""
        is_new = self.find(hashes) < 0
        new_rows = np.flatnonzero(is_new)
        as_bytes = np.ascontiguousarray(hashes[new_rows]).view("V16").ravel()
        first_rows = np.sort(new_rows[np.unique(as_bytes, return_index=True)[1]])
        room = self.capacity - self._size
        if room == 0:
            return 0
        return len(hashes) if len(first_rows) < room else int(first_rows[room - 1]) + 1

    def _probes(self, hashes: Hashes) -> tuple[Longs, Longs]:
        """Where the search for each key begins, and the step that it goes on by."""
        slots = (hashes[:, 0] % np.uint64(self._slots)).astype(np.int64)
        steps = (hashes[:, 1] % np.uint64(self._slots - 1)).astype(np.int64) + 1
        return slots, steps

    def _insert(self, hashes: Hashes, offsets: Longs) -> None:
        table, stored = self._table, self._table[:, _OFFSET]
        values = offsets.astype(np.uint64) + np.uint64(1)  # 0 means that the slot is free
        marks = np.arange(1, len(hashes) + 1, dtype=np.uint64)
        rows = np.arange(len(hashes))
        slots, steps = self._probes(hashes)
        while rows.size:
            at = slots[rows]
            entries = table[at]
            is_free = entries[:, _OFFSET] == 0
            is_same = ~is_free & (entries[:, 0] == hashes[rows, 0]) & (entries[:, 1] == hashes[rows, 1])
            # Of several rows for a slot the last assigned stays, which for equal keys has the largest offset.
            stored[at[is_same]] = np.maximum(stored[at[is_same]], values[rows[is_same]])
            claiming, claimed = rows[is_free], at[is_free]
            stored[claimed] = marks[claiming]
            has_won = stored[claimed] == marks[claiming]
            won, won_slots = claiming[has_won], claimed[has_won]
            table[won_slots, 0], table[won_slots, 1] = hashes[won, 0], hashes[won, 1]
            stored[won_slots] = values[won]
            self._size += len(won)
            passing = rows[~is_free & ~is_same]
            slots[passing] = (slots[passing] + steps[passing]) % self._slots
            waits = ~is_same
            waits[np.flatnonzero(is_free)[has_won]] = False
            rows = rows[waits]  # those that lost a claim look at the same slot again


def _prime_from(number: int) -> int:
    """The first prime that is not less than ``number``."""
    number |= 1
    while not _is_prime(number):
        number += 2
    return number


def _is_prime(odd: int) -> bool:
    divisors = np.arange(3, int(odd**0.5) + 1, 2)
    return bool(np.all(odd % divisors))

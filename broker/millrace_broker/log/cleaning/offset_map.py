"""The last offset of each key in a log's dirty part.

It is a hash table of fixed size in one numpy array, which looks up and adds many keys at once. It uses open addressing,
with a probe step that depends on the key. An entry is 24 bytes, as in Kafka's ``SkimpyOffsetMap``: the key's 128-bit
hash and its offset. ``key_hashes`` has the probability of a collision. In each round every unplaced key probes one
slot; after a few rounds all keys are placed.

Invariants:

- Offsets are added in ascending order, so that an entry's offset only grows.
- ``len`` never exceeds the load factor's share of the slots; a full map accepts nothing more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from millrace_broker.log.cleaning.key_hashes import Hashes

ENTRY_BYTES: Final = 24
"""The memory of a slot."""
_OFFSET: Final = 2
_SLOTS_MIN: Final = 1024
_SPARE: Final = 2
"""The factor by which a map for few records is larger than they need, so that there are fewer collisions."""
_ABSENT: Final = -1

Longs = npt.NDArray[np.int64]


class OffsetMap:
    """A map from hashes of keys to offsets. ``latest_offset`` is the last offset that it covers, -1 at first."""

    def __init__(self, slots: int, load_factor: float, *, expected_max: int | None = None) -> None:
        """Create a map for ``slots * load_factor`` keys, with no more memory than ``expected_max`` keys need."""
        self.capacity: Final = max(int(slots * load_factor), 1)
        wanted = slots if expected_max is None else min(slots, max(_SPARE * expected_max, _SLOTS_MIN))
        # With a prime number of slots every probe step visits all of them. One slot more than keys makes every search
        # end.
        self._slots: Final = _prime_from(max(wanted, min(self.capacity, wanted) + 1, 3))
        self._table: Final = np.zeros((self._slots, 3), np.uint64)
        self._size = 0
        self.latest_offset = _ABSENT

    def __len__(self) -> int:
        return self._size

    @property
    def utilization(self) -> float:
        """The number of keys as a share of the capacity."""
        return self._size / self.capacity

    def put(self, hashes: Hashes, offsets: Longs) -> int:
        """Add keys with ascending offsets; returns how many were added before the map was full.

        A full map does not accept even a key that it has (Kafka's ``buildOffsetMapForSegment``).
        """
        count = len(hashes)
        if self._size + count > self.capacity:
            count = self._count_that_fit(hashes)
        if count:
            self._insert(hashes[:count], offsets[:count])
            self.latest_offset = int(offsets[count - 1])
        return count

    def find(self, hashes: Hashes) -> Longs:
        """Return the offset of each key, -1 for a missing key."""
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
        """Return how many keys can be added before the map is full."""
        is_new = self.find(hashes) < 0
        new_rows = np.flatnonzero(is_new)
        as_bytes = np.ascontiguousarray(hashes[new_rows]).view("V16").ravel()
        first_rows = np.sort(new_rows[np.unique(as_bytes, return_index=True)[1]])
        room = self.capacity - self._size
        if room == 0:
            return 0
        return len(hashes) if len(first_rows) < room else int(first_rows[room - 1]) + 1

    def _probes(self, hashes: Hashes) -> tuple[Longs, Longs]:
        """Return the first slot and the probe step of each key."""
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
            # Of several rows with one slot the last assignment stays; among equal keys it has the largest offset.
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
            rows = rows[waits]  # rows that lost a claim probe the same slot again


def _prime_from(number: int) -> int:
    """Return the first prime that is not less than ``number``."""
    number |= 1
    while not np.all(number % np.arange(3, int(number**0.5) + 1, 2)):
        number += 2
    return number

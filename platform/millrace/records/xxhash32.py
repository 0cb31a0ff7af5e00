"""Checksum of lz4 frame headers: XXH32 with seed 0.

Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, "XXH32 Algorithm Description".
"""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFF_FFFF
_PRIME_1: Final = 0x9E37_79B1
_PRIME_2: Final = 0x85EB_CA77
_PRIME_3: Final = 0xC2B2_AE3D
_PRIME_4: Final = 0x27D4_EB2F
_PRIME_5: Final = 0x1656_67B1


def xxhash32(data: bytes) -> int:
    """Hash fewer than 16 bytes, the limit of a frame header; raises ``ValueError`` for longer input."""
    if len(data) >= 16:
        raise ValueError(f"{len(data)} bytes: only inputs below 16 bytes are supported")
    value = (_PRIME_5 + len(data)) & _MASK
    whole = len(data) - len(data) % 4
    for position in range(0, whole, 4):
        lane = int.from_bytes(data[position : position + 4], "little")
        value = (_rotate((value + lane * _PRIME_3) & _MASK, 17) * _PRIME_4) & _MASK
    for byte in data[whole:]:
        value = (_rotate((value + byte * _PRIME_5) & _MASK, 11) * _PRIME_1) & _MASK
    value = ((value ^ value >> 15) * _PRIME_2) & _MASK
    value = ((value ^ value >> 13) * _PRIME_3) & _MASK
    return value ^ value >> 16


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK

"""Tests of other makers that Kafka passes and millrace does not, with the reason for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DIFFERENCES: Final[Mapping[str, Mapping[str, str]]] = {}
"""Reasons by suite and test."""

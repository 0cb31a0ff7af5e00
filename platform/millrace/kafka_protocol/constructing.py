"""Compiler of constructors of message classes.

A message class gets its own constructor when its first instance is constructed. ``dataclasses`` compiles four functions
for each class when it is declared. For the three hundred classes of Kafka's calls that is a fifth of a broker's start.
A broker constructs instances of only a few of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from millrace.kafka_protocol.source import Source


def compile_constructor(cls: type[Any]) -> Callable[..., None]:
    """Compile ``__init__``, whose arguments are the fields by keyword. A field without a default must be passed."""
    source = Source()
    arguments, names = ["self", "*"], []
    for declared in dataclasses.fields(cls):
        names.append(declared.name)
        has_default = declared.default is not dataclasses.MISSING
        arguments.append(f"{declared.name}={source.constant('d', declared.default)}" if has_default else declared.name)
    with source.block(f"def __init__({', '.join(arguments)}):"):
        for name in names:
            source.add(f"self.{name} = {name}")
    function: Callable[..., None] = source.function("__init__", f"<{cls.__name__}: construct>")
    return function

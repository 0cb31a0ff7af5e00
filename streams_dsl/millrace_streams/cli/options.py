"""Options that several commands on checkpoints share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

DEFAULT_SERVER: Final = "localhost:9092"

CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", "-c", metavar="PLACE", help="The checkpoint that the topology runs with.")
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=0, help="The state after this micro-batch; by default after the last one.")
]
TopologyArgument = Annotated[
    str, typer.Argument(metavar="TOPOLOGY", help="module:function, or path/file.py[:function].", show_default=False)
]

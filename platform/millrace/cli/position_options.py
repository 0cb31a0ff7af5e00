"""Options of the commands that put somebody back or forward to other offsets, with the names of Kafka's tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the first record.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the end.")]
ToOffset = Annotated[int | None, typer.Option(min=0, metavar="OFFSET", help="To this offset.")]
ToDatetime = Annotated[
    str | None, typer.Option(metavar="TIME", help="To the first record since, ISO 8601; UTC without a zone.")
]
ByDuration = Annotated[
    str | None, typer.Option(metavar="DURATION", help="To the first record since so long ago: PT1H30M, P7D.")
]
ShiftBy = Annotated[int | None, typer.Option(metavar="N", help="By N records, backwards if below 0.")]
FromFile = Annotated[Path | None, typer.Option(metavar="FILE", help="As a file says: topic,partition,offset a line.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this it is only shown.")]

"""Options of the commands that reset offsets, named as in ``kafka-consumer-groups.sh``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="Move to the first record.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="Move to the end.")]
ToOffset = Annotated[int | None, typer.Option(min=0, metavar="OFFSET", help="Move to this offset.")]
ToDatetime = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Move to the first record at or after this time (ISO 8601, UTC without a zone)."),
]
ByDuration = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="Move to the first record of this last span of time, such as PT1H30M or P7D."
    ),
]
ShiftBy = Annotated[int | None, typer.Option(metavar="N", help="Move by N records, backwards if N is negative.")]
FromFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Move to the offsets in a file. Each line is topic,partition,offset."),
]
Execute = Annotated[bool, typer.Option("--execute", help="Make the change. Without this option it is only shown.")]

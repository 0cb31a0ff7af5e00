"""Command that writes the message classes.

python -m millrace.kafka_protocol.generator                  from the committed definitions
python -m millrace.kafka_protocol.generator --jars FOLDER    from Kafka's jars, writing the definitions too
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.kafka_protocol.generator import definitions
from millrace.kafka_protocol.generator.render import render

PACKAGE = Path(__file__).parents[1]


def main() -> None:
    """Write the definitions and the modules; remove modules of messages that no longer exist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", type=Path, metavar="FOLDER", help="folder with the jars of one Kafka release")
    jars = parser.parse_args().jars
    if jars:
        definitions.FILE.write_text(definitions.text_of(definitions.read_jars(jars)), encoding="utf-8")
    texts = render(definitions.load())
    for folder in ("calls", "data"):
        for path in (PACKAGE / folder).glob("*.py"):
            if path.name != "__init__.py" and f"{folder}/{path.name}" not in texts:
                path.unlink()
    for name, text in texts.items():
        (PACKAGE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""A program that consumes as a group member until it is killed.

It writes down its records before it commits them.
"""

import json
import sys

from millrace.clients import Consumer


def main() -> None:
    config = json.loads(sys.argv[1])
    with Consumer(config) as consumer, open(sys.argv[3], "a", encoding="utf-8") as out:
        consumer.subscribe(sys.argv[2])
        while True:
            records = consumer.poll(200)
            for record in records:
                out.write(f"{record.partition} {record.offset}\n")
            out.flush()
            if records:
                consumer.commit()


if __name__ == "__main__":
    main()

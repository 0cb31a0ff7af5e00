"""What opaque topics hold, decoded: Avro, JSON and Protobuf payloads to Arrow, many at a time.

* ``decoder``       payloads, bare or framed with a schema's id, to columns; what is wrong with those that are not
* ``wire``          a position in each of many payloads, and integers, text and bytes read from all of them at once
* ``avro, protobuf``  the encodings, a field of all payloads at a time; ``numbers``: what they read to columns' types
* ``json_objects``  JSON by Arrow's reader; ``json_values``: one value at a time, which decides where that gives up
"""

from millrace.payloads.decoder import Decoded, Framing, PayloadDecoder, PayloadKind, PayloadSchema

__all__ = ["Decoded", "Framing", "PayloadDecoder", "PayloadKind", "PayloadSchema"]

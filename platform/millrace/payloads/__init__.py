"""Decoding of Avro, JSON and Protobuf payloads in opaque topics to Arrow, in bulk.

* ``decoder``       payloads, bare or framed with a schema id, to columns; faults of unreadable payloads
* ``wire``          a position in each of many payloads, and bulk reads of integers, text and bytes
* ``avro, protobuf``  the encodings, one field of all payloads at a time; ``numbers`` converts numbers to column types
* ``json_objects``  JSON with Arrow's reader; ``json_values`` reads one value at a time where Arrow's reader fails
"""

from millrace.payloads.decoder import Decoded, Framing, PayloadDecoder, PayloadKind, PayloadSchema

__all__ = ["Decoded", "Framing", "PayloadDecoder", "PayloadKind", "PayloadSchema"]

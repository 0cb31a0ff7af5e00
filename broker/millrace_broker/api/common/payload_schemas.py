"""Conversion of payload schemas to messages."""

from __future__ import annotations

from millrace.coordination.nodes import PayloadSchemaNode
from millrace.protocol import millrace_pb2 as pb


def message_of(schema_id: int, node: PayloadSchemaNode) -> pb.PayloadSchema:
    """Convert a payload schema to its protocol message."""
    return pb.PayloadSchema(
        id=schema_id,
        kind=node.kind,
        text=node.text,
        references=[
            pb.PayloadSchema.Reference(name=name, subject=subject, version=version)
            for name, subject, version in node.references
        ],
        subjects=[
            pb.PayloadSchema.SubjectVersion(subject=subject, version=version) for subject, version in node.subjects
        ],
    )

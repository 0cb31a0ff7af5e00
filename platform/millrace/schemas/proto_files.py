"""Compilation of ``.proto`` files to descriptors with protoc and known imports.

A compiled file is passed on as a ``FileDescriptorSet``, whose users need no compiler.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import EnvironmentProblemError, SchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pool import DescriptorPool

MAIN_FILE: Final = "schema.proto"
_PROTOC_SECONDS_MAX: Final = 60
_IMPORT: Final = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"\s*;', re.MULTILINE)

# Definitions that can be imported without being given, beside protoc's own: the interfaces of Google's common types
# and of the Confluent registry's, field by field.
_KNOWN_FILES: Final = {
    "google/type/date.proto": """syntax = "proto3"; package google.type;
        message Date { int32 year = 1; int32 month = 2; int32 day = 3; }""",
    "google/type/timeofday.proto": """syntax = "proto3"; package google.type;
        message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }""",
    "confluent/meta.proto": """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
}


@dataclass(frozen=True)
class ProtoFile:
    """Compiled ``.proto`` file.

    ``data`` is a serialized ``FileDescriptorSet`` with the file's imports first and the file itself last.
    """

    data: bytes

    @cached_property
    def pool(self) -> DescriptorPool:
        """Own descriptor pool of the file."""
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(self.data).file:
            pool.Add(file)
        return pool

    @cached_property
    def _messages(self) -> list[Descriptor]:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet

        main = FileDescriptorSet.FromString(self.data).file[-1]
        prefix = f"{main.package}." if main.package else ""
        return [self.pool.FindMessageTypeByName(prefix + message.name) for message in main.message_type]

    def message(self, name: str = "") -> Descriptor:
        """Return a message by its name, with or without the package; without a name, the only one of the file.

        Raises ``SchemaError`` with the list of messages.
        """
        if not name and len(self._messages) == 1:
            return self._messages[0]
        found = list(self._messages)
        for message in found:
            found += message.nested_types  # the loop reaches them after all others
            if name and name in (message.full_name, message.full_name.removeprefix(f"{message.file.package}.")):
                return message
        names = ", ".join(message.full_name for message in self._messages) or "none"
        raise SchemaError(f"{f'no message {name}' if name else 'which message?'}: the file's messages are {names}")

    def message_at(self, indexes: tuple[int, ...]) -> Descriptor:
        """Return a message by its index in the file, then in nested messages (Confluent's message indexes).

        Raises ``SchemaError`` if it does not exist.
        """
        try:
            found = self._messages[indexes[0]]
            for index in indexes[1:]:
                found = found.nested_types[index]
        except IndexError:
            raise SchemaError(f"no message has the indexes {list(indexes)} in the schema") from None
        return found

    def message_indexes(self, descriptor: Descriptor) -> bytes:
        """Return the indexes of a message as Confluent's serializers write them before a payload."""
        indexes: list[int] = []
        while descriptor.containing_type is not None:
            outer = descriptor.containing_type
            indexes.insert(0, [each.full_name for each in outer.nested_types].index(descriptor.full_name))
            descriptor = outer
        indexes.insert(0, [each.full_name for each in self._messages].index(descriptor.full_name))
        if indexes == [0]:
            return b"\x00"
        return b"".join(_zigzag(number) for number in (len(indexes), *indexes))

    def message_class(self, descriptor: Descriptor) -> Any:
        """Return the class of parsed messages."""
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(descriptor)


def compile_proto(text: str, imports: Mapping[str, str] | None = None) -> ProtoFile:
    """Compile a ``.proto`` file; ``imports`` maps import names to the texts of files.

    Raises ``SchemaError`` with protoc's message, ``EnvironmentProblemError`` without protoc.
    """
    spec = find_spec("grpc_tools")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentProblemError(".proto files need the Python package grpcio-tools: install millrace[schemas]")
    own = Path(spec.submodule_search_locations[0], "_proto")
    with tempfile.TemporaryDirectory(prefix="millrace-proto-") as directory:
        folder = Path(directory)
        for name, content in {**_KNOWN_FILES, **(imports or {}), MAIN_FILE: text}.items():
            _write(folder, name, content)
        output = folder / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{own}", "--include_imports"]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={output}", str(folder / MAIN_FILE)],
            capture_output=True,
            text=True,
            timeout=_PROTOC_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            message = "; ".join(line for line in done.stderr.splitlines() if "warning:" not in line)
            raise SchemaError(f"the .proto schema is not valid: {message.replace(f'{folder}/', '')}")
        return ProtoFile(output.read_bytes())


def load_descriptor_set(data: bytes) -> ProtoFile:
    """Load a serialized ``FileDescriptorSet`` (``protoc --include_imports -o``); raises ``SchemaError``."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    file = ProtoFile(data)
    try:
        if not FileDescriptorSet.FromString(data).file:
            raise SchemaError("the descriptor set has no file")
        _ = file.pool
    except (DecodeError, TypeError) as error:
        raise SchemaError(f"{len(data)} bytes are no set of descriptors with its imports: {error}") from error
    return file


def proto_file_of(descriptor: Descriptor) -> ProtoFile:
    """Return the file of a message's descriptor (``SomeMessage.DESCRIPTOR``), with its imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files: dict[str, Any] = {}

    def add(file: Any) -> None:
        for dependency in file.dependencies:
            if dependency.name not in files:
                add(dependency)
        files[file.name] = file

    add(descriptor.file)
    found = FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(found.file.add())
    return ProtoFile(found.SerializeToString())


def proto_imports(path: Path, text: str) -> dict[str, str]:
    """Return the direct and indirect imports of a ``.proto`` file that exist beside or above it."""
    found: dict[str, str] = {}
    wanted = _IMPORT.findall(text)
    while wanted:
        name = wanted.pop()
        candidates = [folder / name for folder in path.resolve().parents]
        there = next((candidate for candidate in candidates if candidate.is_file()), None)
        if name not in found and there is not None:
            found[name] = there.read_text(encoding="utf-8")
            wanted += _IMPORT.findall(found[name])
    return found


def _zigzag(number: int) -> bytes:
    """Write a number from 0 as a signed variable-length integer."""
    raw, data = number << 1, b""
    while raw > 0x7F:
        data += bytes([raw & 0x7F | 0x80])
        raw >>= 7
    return data + bytes([raw])


def _write(folder: Path, name: str, content: str) -> None:
    path = (folder / name).resolve()
    if not re.fullmatch(r"[\w./+-]+", name) or not path.is_relative_to(folder.resolve()):
        raise SchemaError(f"import {name!r} is not a file name")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")

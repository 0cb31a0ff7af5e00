"""Allowed schema changes of a typed topic, by its ``schema.compatibility``.

The modes are those of the Confluent registry. Its question about Avro, "can a reader with this schema read what was
written with that one?", is applied to columns. Columns are matched by name, in any order. A nullable column that the
data lacks is null. A type that holds every value of another can read it.

*Backward* means that readers with the new version read older records. *Forward* means that readers with an older
version (a running query) read new records::

    change                                      backward  forward
    nullable column added or dropped            yes       yes
    NOT NULL column added                       no        yes
    NOT NULL column dropped                     yes       no
    NOT NULL becomes NULL, a type widened       yes       no
    NULL becomes NOT NULL, a type narrowed      no        yes
    a type moved to one beside it               no        no       (INT to FLOAT, say: both are read as DOUBLE)
    columns in another order, comments          yes       yes

Some changes are never possible, whatever the mode, because records stay in the log. A column, also a dropped one, may
not get a type without a common type with its former type. A key column may be neither dropped nor given another type,
because its bytes determine the partition. Therefore there is always one *read schema*. It has the newest version's
columns, each in the narrowest type that holds its values of all versions. A column is nullable if it is nullable or
missing in one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from millrace.config.topic import SchemaCompatibility
from millrace.errors import IncompatibleSchemaError
from millrace.schemas.promotion import common_type
from millrace.schemas.rules import validate_topic_schema
from millrace.schemas.types import spark_name


class ChangeKind(Enum):
    """Kind of a column change.

    The value is (backward compatible, forward compatible, number).
    """

    ADDED = (True, True, 1)
    ADDED_REQUIRED = (False, True, 2)
    DROPPED = (True, True, 3)
    DROPPED_REQUIRED = (True, False, 4)
    RELAXED = (True, False, 5)
    TIGHTENED = (False, True, 6)
    WIDENED = (True, False, 7)
    NARROWED = (False, True, 8)
    MOVED = (False, False, 9)
    IMPOSSIBLE = (False, False, 10)

    @property
    def backward(self) -> bool:
        """True if the newer version reads records of the older one."""
        return self.value[0]

    @property
    def forward(self) -> bool:
        """True if the older version reads records of the newer one."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Difference between two versions; ``column`` is a path (``a.b.element``), ``what`` describes it."""

    column: str
    kind: ChangeKind
    what: str


def schema_changes(old: pa.Schema, new: pa.Schema, key_columns: Sequence[str] = ()) -> list[SchemaChange]:
    """Return every difference that matters to a reader, in the order of the new columns, then of dropped ones."""
    changes = list(_field_changes(list(old), list(new), ""))
    for name in key_columns:
        after = new.field(name) if name in new.names else None
        if after is None or after.type != old.field(name).type:
            to = "dropped" if after is None else f"changed from {spark_name(old.field(name).type)}"
            changes = [change for change in changes if change.column != name]
            changes.append(SchemaChange(name, ChangeKind.IMPOSSIBLE, f"{to}, and it is a key column"))
    return changes


def _field_changes(old: Sequence[pa.Field], new: Sequence[pa.Field], prefix: str) -> Iterator[SchemaChange]:
    before = {field.name: field for field in old}
    for field in new:
        path = prefix + field.name
        if field.name not in before:
            if field.nullable:
                yield SchemaChange(path, ChangeKind.ADDED, "added")
            else:
                yield SchemaChange(path, ChangeKind.ADDED_REQUIRED, "added as NOT NULL")
        else:
            yield from _changes_of(before[field.name], field, path)
    names = {field.name for field in new}
    for field in old:
        if field.name not in names:
            kind = ChangeKind.DROPPED if field.nullable else ChangeKind.DROPPED_REQUIRED
            yield SchemaChange(prefix + field.name, kind, "dropped" if field.nullable else "dropped, and was NOT NULL")


def _changes_of(old: pa.Field, new: pa.Field, path: str) -> Iterator[SchemaChange]:
    if old.nullable and not new.nullable:
        yield SchemaChange(path, ChangeKind.TIGHTENED, "changed from NULL to NOT NULL")
    if new.nullable and not old.nullable:
        yield SchemaChange(path, ChangeKind.RELAXED, "changed from NOT NULL to NULL")
    if old.type == new.type:
        return
    if pat.is_struct(old.type) and pat.is_struct(new.type):
        yield from _field_changes(list(old.type), list(new.type), f"{path}.")
    elif pat.is_list(old.type) and pat.is_list(new.type):
        yield from _changes_of(old.type.value_field, new.type.value_field, f"{path}.element")
    elif pat.is_map(old.type) and pat.is_map(new.type):
        # Keys that are different in one type might be equal in another.
        if old.type.key_type != new.type.key_type:
            before, after = spark_name(old.type.key_type), spark_name(new.type.key_type)
            what = f"changed from {before} to {after}, and it is a map's key"
            yield SchemaChange(f"{path}.key", ChangeKind.IMPOSSIBLE, what)
        yield from _changes_of(old.type.item_field, new.type.item_field, f"{path}.value")
    else:
        yield SchemaChange(
            path, _type_change(old.type, new.type), f"changed from {spark_name(old.type)} to {spark_name(new.type)}"
        )


def _type_change(old: pa.DataType, new: pa.DataType) -> ChangeKind:
    common = common_type(new, old)
    if common is None:
        return ChangeKind.IMPOSSIBLE
    if common == new:
        return ChangeKind.WIDENED
    return ChangeKind.NARROWED if common == old else ChangeKind.MOVED


def read_schema(versions: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema in which the records of all versions (oldest first) are read; see the module's docstring.

    Raises ``IncompatibleSchemaError`` with a column whose types have no common type.
    """
    newest = versions[-1]
    fields = list(newest)
    for older in versions[:-1]:
        for position, field in enumerate(fields):
            at = older.get_field_index(field.name)
            nullable, data_type = True, field.type
            if at >= 0:
                nullable = field.nullable or older.field(at).nullable
                common = common_type(field.type, older.field(at).type)
                if common is None:
                    raise IncompatibleSchemaError(
                        f"column {field.name} was {spark_name(older.field(at).type)} in an older version, which "
                        f"{spark_name(field.type)} has no type in common with: add a column of another name"
                    )
                data_type = common
            fields[position] = pa.field(field.name, data_type, nullable, field.metadata)
    return pa.schema(fields)


def check_evolution(
    versions: Sequence[pa.Schema],
    new: pa.Schema,
    mode: SchemaCompatibility = SchemaCompatibility.FULL,
    key_columns: Sequence[str] = (),
) -> None:
    """Check that ``new`` may follow ``versions`` (oldest first, at least one) in a topic of this mode.

    Raises ``IncompatibleSchemaError`` with column, change, mode and the older version (counted from 1);
    ``SchemaError`` if ``new`` is not a valid topic schema.
    """
    for number, old in enumerate(versions, 1):
        for change in schema_changes(old, new, key_columns):
            if change.kind is ChangeKind.IMPOSSIBLE:
                raise IncompatibleSchemaError(
                    f"column {change.column} is {change.what}: that is never possible, because the log has records "
                    f"of version {number}: add a column of another name"
                )
    validate_topic_schema(new, key_columns)
    first = 1 if mode.is_transitive else len(versions)
    for number, old in enumerate(versions[first - 1 :], first):
        for change in schema_changes(old, new, key_columns):
            _check_allowed(change, mode, number)
    read_schema([*versions, new])


def _check_allowed(change: SchemaChange, mode: SchemaCompatibility, version: int) -> None:
    if mode.is_backward and not change.kind.backward:
        why = f"a reader of the new version could not read records of version {version}"
    elif mode.is_forward and not change.kind.forward:
        why = f"a reader of version {version} could not read new records"
    else:
        return
    raise IncompatibleSchemaError(
        f"column {change.column} is {change.what}: schema.compatibility={mode} does not allow that, because {why}; "
        f"{_remedy(change.kind)}"
    )


def _remedy(kind: ChangeKind) -> str:
    if kind is ChangeKind.ADDED_REQUIRED:
        return "make it nullable"
    if kind is ChangeKind.DROPPED_REQUIRED:
        return "keep it"
    return "leave it as it is and add a column, or choose another mode"

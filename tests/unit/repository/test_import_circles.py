"""Test of import circles.

Modules must not import each other, also not for types only. The import contract about circles compares the modules of
one folder. This test also sees a module that imports the package to which it belongs.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

AS_ONE = ("millrace_streams.language",)
"""Packages whose modules may import each other; ``pyproject.toml`` has the reasons."""


def _unit_of(module: str) -> str:
    return next((package for package in AS_ONE if module.startswith(f"{package}.")), module)


@pytest.mark.parametrize("package", ["millrace", "millrace_broker", "pyspark_millrace", "millrace_streams"])
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    graph = grimp.build_graph(package, cache_dir=None)
    imports: dict[str, set[str]] = {}
    for module in graph.modules:
        unit = _unit_of(module)
        imports.setdefault(unit, set()).update(map(_unit_of, graph.find_modules_directly_imported_by(module)))
        imports[unit].discard(unit)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))

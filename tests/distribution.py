"""Distribution of test files to the processes of ``make test``.

With this distribution a run also ends if a process dies. If a process dies, pytest-xdist 3.8 gives all of its files to
the others, also those whose tests have all ended. A process that gets a file without tests waits for ever for its next
test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


class FileScheduling(LoadFileScheduling):
    """The scheduling of pytest-xdist without the ended files of a dead process.

    The other processes get only those files of the dead process that have tests left.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Distribute the files of a process that has ended. Return the test that it died in, if it died."""
        files = self.assigned_work[node]
        self.assigned_work[node] = {file: ended for file, ended in files.items() if not all(ended.values())}
        return super().remove_node(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling | None:
    """Distribute files with ``--dist loadfile``."""
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None

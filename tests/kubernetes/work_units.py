"""Groups tests by worker: tests that share a control plane, which is started once.

pytest-xdist has groups of its own, but finds none of them with this pytest (xdist 3.8 writes them where pytest 9.2 does
not look).
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

HERE: Final = PurePosixPath("tests/kubernetes")
SHARED: Final = "the cluster of two nodes"
GUESTS: Final = "the cluster of two nodes with guests"
"""Last of it, in the order of names, come the VMs: what they need is installed until the run ends, and has a service
that keeps books, a kube-scheduler and a controller. No other unit may have stories that bring their own."""
_APART: Final = (PurePosixPath("tests/deploy/images/test_real_images.py"), HERE / "failing")
"""Files that need no cluster, and the folder whose stories are about a control plane alone, which is up in seconds."""
FIRST: Final = (GUESTS, SHARED)
"""The units that take minutes are begun first, so that workers end together."""


def unit_of(nodeid: str) -> str:
    """The unit of the test.

    >>> unit_of("tests/kubernetes/test_vms.py::test_vm_grows"), unit_of("tests/conformance/test_lists.py::t[real]")
    ('the cluster of two nodes with guests', 'the cluster of two nodes')
    >>> unit_of("tests/kubernetes/failing/test_watches.py::t"), unit_of("tests/deploy/images/test_real_images.py::t")
    ('tests/kubernetes/failing/test_watches.py', 'tests/deploy/images/test_real_images.py')
    >>> unit_of("tests/kubernetes/requests/test_kubelets.py::t"), unit_of("tests/kubernetes/scheduling/test_x.py::t")
    ('the cluster of two nodes with guests', 'the cluster of two nodes')
    """
    path = PurePosixPath(nodeid.partition("::")[0])
    if any(path.is_relative_to(each) for each in _APART):
        return str(path)
    with_guests = path.is_relative_to(HERE / "requests") or path in {HERE / "test_vm_sleep.py", HERE / "test_vms.py"}
    return GUESTS if with_guests else SHARED


class SharedControlPlanes(LoadScopeScheduling):  # type: ignore[misc]
    """Hands whole units to workers, the longest first."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        next_one = min(self.workqueue, key=lambda unit: FIRST.index(unit) if unit in FIRST else len(FIRST))
        self.workqueue.move_to_end(next_one, last=False)
        super()._assign_work_unit(node)

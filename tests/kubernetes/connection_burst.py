"""A burst of connections to a VM's database, and whether its agent learned of them before a scrape."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Final

from tests.kubernetes.postgres_session import Session
from tests.kubernetes.real_kubernetes import NotYetError, RealKubernetes, eventually
from tests.kubernetes.vms import has, monitor_of, status

_BURSTS: Final = (12, 24, 48, 48, 48)
"""Connections of each try. A fast guest opens a dozen before its kernel reports that they wait; an emulated one on a
busy machine cannot log in 48 within a session's patience.
"""
_CALM: Final = 1.0
_JUDGED: Final = 15.0
"""A report counts for 3 s; a look after that judges it."""


def grows_for_connections(cluster: RealKubernetes, client: str) -> bool:
    """True if the VM, once it is small, grows by what its monitor reports of connections that come at once.

    They come from the network namespace ``client`` and ask nothing. A scrape may be first; then more of them come.
    """
    return any(_grows_for(count, cluster, client) for count in _BURSTS)


def _grows_for(count: int, cluster: RealKubernetes, client: str) -> bool:
    eventually(lambda: has(cluster, "1", 4), "it is small")
    time.sleep(_CALM)
    before, address = _heard(cluster), status(cluster)["extraNetIP"]
    with ExitStack() as opened, ThreadPoolExecutor(count) as clients:
        for each in clients.map(lambda _: Session(client, address), range(count)):
            opened.callback(each.close)
        eventually(lambda: has(cluster, "2", 4), "it has grown")
        with suppress(NotYetError):
            eventually(lambda: _heard(cluster) != before, "looks have judged a report", _JUDGED)
    right, wrong = (after - earlier for after, earlier in zip(_heard(cluster), before, strict=True))
    print(f"for {count} connections {right} reports were right and {wrong} false")
    return right + wrong > 0


def _heard(cluster: RealKubernetes) -> tuple[int, int]:
    """For how many reports of its guest's monitor the VM has grown, rightly and not."""
    said = monitor_of(cluster)
    return int(said["right_reports"]), int(said["false_reports"])

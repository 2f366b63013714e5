"""``python -m deploy.local.cluster NAME [COMMAND]``: the process that owns one cluster.

``autoscale local up`` starts it. It reads the specification from the cluster's folder and reports progress on standard
output to the command that started it. While the cluster is up, it keeps COMMAND running, which records its history.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from deploy.local.cluster.cluster import Cluster
from deploy.local.cluster.folder import INHERITED, AlreadyRunsError, ClusterFolder, ClusterLock
from deploy.local.cluster.progress import Progress, StepFailedError
from deploy.local.cluster.real_cluster import RealCluster
from protocol.runtime.error_groups import innermost
from protocol.runtime.garbage import collect_seldom
from protocol.runtime.json_log import log_as_json
from protocol.runtime.open_files import allow_open_files

FAILED = 1
OPEN_FILES = 65_536
"""A simulated guest listens at two ports, and its agent is connected to both."""

_log = logging.getLogger("cluster")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cluster until SIGTERM or SIGINT. Returns 0, or 1 if it did not come up or broke."""
    name, *beside = sys.argv[1:] if arguments is None else arguments
    folder, progress = ClusterFolder.of(name), Progress()
    log_as_json()
    allow_open_files(OPEN_FILES)
    collect_seldom()
    failure: StepFailedError | None = None
    try:
        _take_lock(folder)
        asyncio.run(_run(folder, progress, beside))
    # The cluster runs in task groups, so errors may come in groups.
    except* AlreadyRunsError as errors:
        failure = StepFailedError(str(innermost(errors)))
    except* StepFailedError as errors:
        first = innermost(errors)
        failure = first if isinstance(first, StepFailedError) else StepFailedError(str(first))
        _log.error("the cluster failed", extra={"reason": str(failure)})
    except* Exception as errors:  # noqa: BLE001 - the last handler: any error is logged and ends the process
        _log.exception("the cluster broke")
        failure = StepFailedError(f"the cluster broke: {innermost(errors)!r}", str(folder.log("cluster")))
    if failure is not None:
        progress.failed(failure)
    return FAILED if failure is not None else 0


def _take_lock(folder: ClusterFolder) -> None:
    """Holds the cluster's lock until this process ends. Raises ``AlreadyRunsError``."""
    # Removed from the environment, so that children of this process do not take the lock for theirs.
    if passed_on := os.environ.pop(INHERITED, ""):
        ClusterLock.inherited(folder.root, passed_on)
    else:
        ClusterLock.take(folder.name, folder.root)


async def _run(folder: ClusterFolder, progress: Progress, beside: Sequence[str]) -> None:
    """Brings the cluster up and keeps it; a signal ends it at any step, but does not interrupt its clean-up."""
    stop = asyncio.Event()
    spec = folder.read_spec()
    cluster = RealCluster(folder, spec, progress) if spec.kubernetes else Cluster(folder, spec, progress, beside)
    running = asyncio.ensure_future(cluster.run(stop))

    def ended() -> None:
        # A second signal must not interrupt the clean-up.
        if not stop.is_set():
            stop.set()
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended)
    try:
        await running
    except asyncio.CancelledError:
        # If `stop` is not set, the cancellation does not come from a signal.
        if not stop.is_set():
            raise
    _log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())

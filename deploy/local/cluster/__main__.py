"""``python -m deploy.local.cluster NAME [COMMAND]``: the process of one cluster, started by ``autoscale local up``.

It reads the specification from the cluster's folder and reports progress on standard output. While the cluster is up,
it keeps COMMAND, the history recorder, running.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from deploy.local.cluster.cluster import Cluster
from deploy.local.cluster.folder import INHERITED, AlreadyRunningError, ClusterFolder, ClusterLock
from deploy.local.cluster.progress import Progress, StepFailedError
from deploy.local.cluster.real_cluster import RealCluster
from protocol.runtime.error_groups import innermost
from protocol.runtime.garbage import tune_gc
from protocol.runtime.json_log import log_as_json
from protocol.runtime.open_files import allow_open_files

FAILED = 1
OPEN_FILES = 65_536
"""A simulated guest listens at two ports, and its agent is connected to both."""

_log = logging.getLogger("cluster")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cluster until SIGTERM or SIGINT. Returns 0, or 1 if it failed."""
    name, *recorder = sys.argv[1:] if arguments is None else arguments
    folder, progress = ClusterFolder.of(name), Progress()
    log_as_json()
    allow_open_files(OPEN_FILES)
    tune_gc()
    failure: StepFailedError | None = None
    try:
        _take_lock(folder)
        asyncio.run(_run(folder, progress, recorder))
    # Task groups raise exception groups.
    except* AlreadyRunningError as errors:
        failure = StepFailedError(str(innermost(errors)))
    except* StepFailedError as errors:
        first = innermost(errors)
        failure = first if isinstance(first, StepFailedError) else StepFailedError(str(first))
        _log.error("the cluster failed", extra={"reason": str(failure)})
    except* Exception as errors:  # noqa: BLE001 - the last handler: any error is logged and ends the process
        _log.exception("internal error")
        failure = StepFailedError(f"internal error: {innermost(errors)!r}", str(folder.log("cluster")))
    if failure is not None:
        progress.failed(failure)
    return FAILED if failure is not None else 0


def _take_lock(folder: ClusterFolder) -> None:
    """Hold the cluster's lock until this process ends. Raises ``AlreadyRunningError``."""
    # Removed from the environment: children must not inherit the lock.
    if descriptors := os.environ.pop(INHERITED, ""):
        ClusterLock.inherited(folder.root, descriptors)
    else:
        ClusterLock.take(folder.name, folder.root)


async def _run(folder: ClusterFolder, progress: Progress, recorder: Sequence[str]) -> None:
    """Run the cluster until a signal; a signal stops it at any step, but does not interrupt its cleanup."""
    stop = asyncio.Event()
    spec = folder.read_spec()
    cluster = RealCluster(folder, spec, progress) if spec.kubernetes else Cluster(folder, spec, progress, recorder)
    running = asyncio.ensure_future(cluster.run(stop))

    def on_signal() -> None:
        # A second signal must not interrupt the cleanup.
        if not stop.is_set():
            stop.set()
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await running
    except asyncio.CancelledError:
        # The cancellation did not come from a signal.
        if not stop.is_set():
            raise
    _log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())

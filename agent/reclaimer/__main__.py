"""``python -m agent.reclaimer``: serve until SIGTERM or SIGINT, release all holds, exit 0; 2 if it cannot start."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from agent import texts
from agent.reclaimer.holds import LOG, Holds
from agent.reclaimer.server import ReclaimServer
from protocol import VERSION
from protocol.runtime.json_log import log_as_json

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "CGROUP_ROOT": ("/host/cgroup", "the node's /sys/fs/cgroup, writable"),
    "RECLAIMER_SOCKET": ("/run/reclaimer/reclaimer.sock", "the socket that the agent connects to"),
    "RECLAIMER_RECORDS": (
        "/run/reclaimer/holds",
        "a folder of its own that outlives the pod, for the limits to restore",
    ),
}


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """The entry point; returns the exit status."""
    settings = _settings(arguments, environment)
    log_as_json()
    holds = Holds(Path(settings["CGROUP_ROOT"]), Path(settings["RECLAIMER_RECORDS"]))
    try:
        restored = holds.restore()
        server = ReclaimServer(Path(settings["RECLAIMER_SOCKET"]), holds)
    except OSError as error:
        print(f"reclaimer: cannot start: {error}", file=sys.stderr)
        return 2
    LOG.info(texts.RECLAIMER_SERVES, extra={"version": VERSION, **settings, "restored": restored})
    # Block signals before any thread starts, so that only the waiting thread gets them.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=_stop_on_signal, args=(server,), daemon=True).start()
    server.run()
    return 0


def _stop_on_signal(server: ReclaimServer) -> None:
    signal.sigwait(SIGNALS)
    server.stop()


def _settings(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> dict[str, str]:
    parser = argparse.ArgumentParser(
        prog="python -m agent.reclaimer",
        description="Holds pods below a memory size while the agent of this node tries whether that is enough. Needs "
        "UID 0 and no capabilities. Each flag can be set by the environment variable of its name.",
    )
    for name, (default, text) in OPTIONS.items():
        flag = f"--{name.lower().replace('_', '-')}"
        # Empty counts as unset, because manifests often pass empty variables.
        value = environment.get(name) or default
        parser.add_argument(flag, dest=name, metavar=name, default=value, help=f"{text} (default: {default})")
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    return {name: value or OPTIONS[name][0] for name, value in vars(parser.parse_args(arguments)).items()}


if __name__ == "__main__":
    raise SystemExit(main())

"""Common start and end of the services: flags, credentials, signals, status."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import prometheus_client

from protocol import VERSION
from protocol.runtime.clock import Clock
from protocol.runtime.credentials import Credentials, CredentialsError, from_kubeconfig, from_pod
from protocol.runtime.error_groups import innermost
from protocol.runtime.followed_file import FileRefusedError
from protocol.runtime.json_log import log_as_json


class StartError(Exception):
    """The program cannot start; the message says why."""


def prepare(log_level: str) -> None:
    """Set up the log and the metrics of this process."""
    log_as_json(log_level)
    # Otherwise every set of labels of a counter or histogram has one more series (``_created``).
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here


def run(
    name: str, work: Coroutine[None, None, None], new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> int:
    """Run ``work`` on a loop of ``new_loop``; return the exit status: 2 with a message if it cannot start, else 0."""
    status = 0
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(work)
    # A task group wraps even a single exception in a group.
    except* (FileRefusedError, CredentialsError, StartError) as problems:
        print(f"{name}: {innermost(problems)}", file=sys.stderr)
        status = 2
    return status


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not ``signal.signal``: its handler could not wake the event loop.
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def credentials(kubeconfig: str | None, clock: Clock) -> Credentials:
    """Credentials of a kubeconfig file, or of the pod that we run in. Raises ``CredentialsError``."""
    return from_pod(os.environ, clock) if kubeconfig is None else from_kubeconfig(Path(kubeconfig), clock)


def add_kubeconfig(found: argparse.ArgumentParser) -> None:
    """Add the options to reach the Kubernetes API."""
    found.add_argument(
        "--kubeconfig",
        type=Path,
        # kubectl's variable, but here it names a single file, not a list.
        default=os.environ.get("KUBECONFIG"),
        metavar="FILE",
        help="how to reach the Kubernetes API (default: $KUBECONFIG, else the pod's service account)",
    )


def add_explain_token(found: argparse.ArgumentParser) -> None:
    """Add the options for who may read explanations, and for the token shown to peers."""
    found.add_argument(
        "--explain-token",
        type=Path,
        metavar="FILE",
        help="a token that alone opens explanations here and is shown elsewhere (default: tokens of the cluster's)",
    )


def add_log_level(found: argparse.ArgumentParser) -> None:
    """Add the log level and ``--version``."""
    found.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    found.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level to log to stderr (default: %(default)s)",
    )

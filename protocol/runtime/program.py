"""Common startup and shutdown of the services: flags, credentials, signals, exit status."""

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
    """Set up logging and metrics of this process."""
    log_as_json(log_level)
    # Otherwise every label set of a counter or histogram exports one more series (``_created``).
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here


def run(
    name: str, work: Coroutine[None, None, None], new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> int:
    """Run ``work`` on a loop from ``new_loop``; return the exit status: 2 with a message if it cannot start, else 0."""
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
    """Credentials from a kubeconfig file, or of this process's pod. Raises ``CredentialsError``."""
    return from_pod(os.environ, clock) if kubeconfig is None else from_kubeconfig(Path(kubeconfig), clock)


def add_kubeconfig(parser: argparse.ArgumentParser) -> None:
    """Add the options to reach the Kubernetes API."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        # kubectl's variable, but here it names a single file, not a list.
        default=os.environ.get("KUBECONFIG"),
        metavar="FILE",
        help="how to reach the Kubernetes API (default: $KUBECONFIG, else the pod's service account)",
    )


def add_explain_token(parser: argparse.ArgumentParser) -> None:
    """Add the option for the token that grants access to explanations here and on peers."""
    parser.add_argument(
        "--explain-token",
        type=Path,
        metavar="FILE",
        help="file with the only token that gives access to explanations, also sent to peers (default: cluster tokens)",
    )


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Add the log level and ``--version``."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    parser.add_argument(
        "--log-level",
        default="info",
        type=str.lower,
        choices=["debug", "info", "warning", "error"],
        help="minimum level to log to stderr (default: %(default)s)",
    )

"""``autoscale-injector``: agents for VM pods, and certificates (B.4, B.13). Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx2 as httpx

from protocol.runtime.background_jobs import background_jobs
from protocol.runtime.clock import SystemClock
from protocol.runtime.followed_file import FollowedFile
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import add_kubeconfig, add_log_level, credentials, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app
from protocol.runtime.tls_metrics import followed_by, watch_tls
from protocol.units import Seconds
from scheduler_plugin.injector.app import InjectorProgram
from scheduler_plugin.injector.settings import parse_settings
from scheduler_plugin.injector.web import webhook_app

NAME: Final = "autoscale-injector"
CONNECTIONS: Final = httpx.Limits(max_connections=32, max_keepalive_connections=8)
WEBHOOK_LIMITS: Final = Limits(
    connections=512,
    per_peer=256,
    request=Seconds(5.0),
    # No client is authenticated, and the API server keeps its connections for 90 s.
    idle_unauthenticated=Seconds(120.0),
    bodies=32 * 1024 * 1024,
)
METRICS_LIMITS: Final = Limits(connections=128, per_peer=64)

DESCRIPTION: Final = (
    "Injects the agent into new pods of VMs (a mutating webhook), and issues and renews the certificates of the "
    "scheduler, of the injector and of other installed programs."
)


def parser() -> argparse.ArgumentParser:
    """Return the parser with all flags and their defaults."""
    flags = argparse.ArgumentParser(prog="autoscale-injector", description=DESCRIPTION)
    flags.add_argument(
        "--settings", type=Path, required=True, metavar="FILE", help="settings file, reloaded when it changes"
    )
    flags.add_argument(
        "--tls-folder",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder of its own certificate: written by it, or mounted with certificates.provider files",
    )
    flags.add_argument(
        "--pods", action="store_true", help="annotate new postgres pods with the size of the pod that they replace"
    )
    add_kubeconfig(flags)
    for name, port, what in (
        ("webhook", 10293, "/mutate for the API server, with TLS"),
        ("metrics", 10292, "/metrics /healthz /readyz"),
    ):
        flags.add_argument(
            f"--listen-{name}",
            default=f"0.0.0.0:{port}",
            metavar="HOST:PORT",
            help=f"address of {what} (default: %(default)s)",
        )
    add_log_level(flags)
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT, then return 0; return 2 if it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run(NAME, _run(options))


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    # Invalid settings end the program only at the start; later the old ones stay in force.
    file = FollowedFile(options.settings, parse_settings)
    settings = file.load()
    access = credentials(options.kubeconfig, clock)
    async with http_client(access, CONNECTIONS, NAME) as http:
        # Random, because a restarted pod keeps its name but is another holder of the Lease.
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        api, folder = HttpApi(http, access.token), options.tls_folder
        program = InjectorProgram(api, clock, settings, identity, folder, options.pods)
        watch_tls(program.telemetry.registry, [program.tls, *followed_by(access.tls)])
        following = file.follow(program.use, program.telemetry, clock)
        async with background_jobs(program.run(), following, _serve_webhook(options.listen_webhook, program, stop)):
            await serve([_probes(options.listen_metrics, program)], stop)


async def _serve_webhook(address: str, program: InjectorProgram, stop: asyncio.Event) -> None:
    """Listen once there is a certificate. Until then the API server skips the webhook (``Ignore``)."""
    await program.serves.wait()
    await serve([Listener("webhook", webhook_app(program.injector), address, program.tls, WEBHOOK_LIMITS)], stop)


def _probes(address: str, program: InjectorProgram) -> Listener:
    description = "Injects the agent into VM pods, and issues certificates."
    app = probes_app(NAME, description, program.readiness, program.telemetry.page)
    return Listener("metrics", app, address, limits=METRICS_LIMITS)


if __name__ == "__main__":
    sys.exit(main())

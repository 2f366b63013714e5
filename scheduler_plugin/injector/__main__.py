"""``autoscale-injector``: agents for the pods of VMs, and certificates for all (B.4, B.13). Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import sys
from collections.abc import Sequence
from typing import Final

import httpx2 as httpx

from protocol.runtime.clock import SystemClock
from protocol.runtime.followed_file import FollowedFile, SettingsFollower
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import credentials, prepare, run, stop_on_signals
from protocol.runtime.tls_metrics import followed_by, watch_tls
from protocol.units import Seconds
from scheduler_plugin.injector.app import InjectorProgram, assemble
from scheduler_plugin.injector.options import parser
from scheduler_plugin.injector.settings import parse_settings
from scheduler_plugin.injector.web import injector_app, webhook_app
from scheduler_plugin.web.limits import Limits
from scheduler_plugin.web.serving import Listener, serve

NAME: Final = "autoscale-injector"
CONNECTIONS: Final = httpx.Limits(max_connections=32, max_keepalive_connections=8)
WEBHOOK_LIMITS: Final = Limits(connections=512, per_peer=256, request=Seconds(5.0))
METRICS_LIMITS: Final = Limits(connections=128, per_peer=64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 then, 2 if it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run(NAME, _run(options))


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    # Settings that are refused at the start end the program; if new ones are refused later, the old ones stay.
    file = FollowedFile(options.settings, parse_settings)
    settings = file.load()
    access = credentials(options.kubeconfig, clock)
    async with http_client(access, CONNECTIONS, NAME) as http:
        # Random, so that a restarted pod of the same name is another holder of the Lease.
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        program = assemble(HttpApi(http, access.token), clock, settings, identity, options.tls_folder)
        watch_tls(program.telemetry.registry, [program.tls, *followed_by(access.tls)])
        async with asyncio.TaskGroup() as tasks:
            follower = SettingsFollower(program.use, program.telemetry)
            background = [tasks.create_task(program.run()), tasks.create_task(file.follow(follower, clock))]
            webhook = tasks.create_task(_serve_webhook(options.listen_webhook, program, stop))
            await serve([_probes(options.listen_metrics, program)], stop)
            for task in (*background, webhook):
                task.cancel()


async def _serve_webhook(address: str, program: InjectorProgram, stop: asyncio.Event) -> None:
    """Listens once there is a certificate: until then the API server creates pods without asking (``Ignore``)."""
    await program.serves.wait()
    await serve([Listener("webhook", webhook_app(program.injector), address, program.tls, WEBHOOK_LIMITS)], stop)


def _probes(address: str, program: InjectorProgram) -> Listener:
    return Listener("metrics", injector_app(program), address, limits=METRICS_LIMITS)


if __name__ == "__main__":
    sys.exit(main())

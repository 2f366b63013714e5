"""``autoscale-groups``: how many replicas, and how large each (S1, S3). Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import prometheus_client

from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import Credentials, CredentialsError, from_kubeconfig, from_pod
from protocol.runtime.followed_file import FileRefusedError, FollowedFile
from protocol.runtime.json_log import log_as_json
from scheduler_plugin.cluster.http_api import HttpApi
from scheduler_plugin.groups.app import Program, assemble
from scheduler_plugin.groups.controllers.member_agents import HttpMemberAgents
from scheduler_plugin.groups.options import parser
from scheduler_plugin.groups.settings import GroupsSettings, SettingsFollower, parse_settings
from scheduler_plugin.groups.web import probes_app
from scheduler_plugin.web.limits import Limits
from scheduler_plugin.web.serving import Listener, ListenError, serve

CONNECTIONS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=32)
LIMITS: Final = Limits(connections=256, per_peer=64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 then, 2 where it cannot start."""
    options = parser().parse_args(arguments)
    log_as_json(options.log_level)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here
    status = 0
    try:
        asyncio.run(_run(options))
    except* (FileRefusedError, CredentialsError, ListenError) as problems:
        print(f"autoscale-groups: {_first(problems)}", file=sys.stderr)
        status = 2
    return status


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    file = None if options.settings is None else FollowedFile(options.settings, parse_settings)
    settings = GroupsSettings() if file is None else file.load()
    found = _credentials(options, clock)
    async with (
        httpx.AsyncClient(base_url=found.server, verify=found.tls, limits=CONNECTIONS, trust_env=False) as http,
        httpx.AsyncClient(limits=CONNECTIONS, trust_env=False) as to_agents,
    ):
        api, agents = HttpApi(http, found.token), HttpMemberAgents(to_agents, options.agents_port)
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        program = assemble(api, clock, settings, identity, agents)
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(program.run(api, clock))]
            if file is not None:
                follower = SettingsFollower(program.use, program.telemetry)
                background.append(tasks.create_task(file.follow(follower, clock)))
            await serve([_listener(options, program)], clock, stop)
            for task in background:
                task.cancel()


def _listener(options: argparse.Namespace, program: Program) -> Listener:
    return Listener("metrics", probes_app(program), options.listen, limits=LIMITS)


def _credentials(options: argparse.Namespace, clock: SystemClock) -> Credentials:
    if options.kubeconfig is None:
        return from_pod(os.environ, clock)
    return from_kubeconfig(Path(options.kubeconfig), clock)


if __name__ == "__main__":
    sys.exit(main())

"""``autoscale-groups``: replica counts and sizes of workloads (S1, S3). Run with ``--help``."""

from __future__ import annotations

import argparse
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
from protocol.runtime.keep_alive import no_cookies
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.program import (
    add_explain_token,
    add_kubeconfig,
    add_log_level,
    credentials,
    prepare,
    run,
    stop_on_signals,
)
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from scheduler_plugin.groups.app import assemble
from scheduler_plugin.groups.controllers.denials import HttpDenials
from scheduler_plugin.groups.controllers.member_agents import MAX_QUERIES, HttpMemberAgents
from scheduler_plugin.groups.settings import GroupsSettings, parse_settings
from scheduler_plugin.groups.web import groups_app
from scheduler_plugin.own_tokens import tokens_of
from scheduler_plugin.web.explain_guard import GuardedExplanations, explain_access

DESCRIPTION: Final = (
    "Decides how many replicas a workload has and how large each is (Hvpa, Tortoise), and makes the VMs of a "
    "VirtualMachineGroup."
)


def parser() -> argparse.ArgumentParser:
    """Return the parser with all flags and their defaults."""
    arguments = argparse.ArgumentParser(prog="autoscale-groups", description=DESCRIPTION)
    arguments.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="settings file, reloaded when it changes (default: none, all settings have defaults)",
    )
    add_kubeconfig(arguments)
    add_explain_token(arguments)
    arguments.add_argument(
        "--listen",
        default="0.0.0.0:10294",
        metavar="HOST:PORT",
        help="address of /metrics /healthz /readyz, with tokens /explain/NAMESPACE/KIND/NAME (default: %(default)s)",
    )
    agents_help = "port of the agents of a group's VMs, at the IPs of their pods (default: %(default)s)"
    arguments.add_argument("--agents-port", type=int, default=9101, metavar="PORT", help=agents_help)
    arguments.add_argument(
        "--scheduler",
        default="http://autoscaling-scheduler:10297",
        metavar="URL",
        help="URL of the scheduler's /explain, which reports denials (default: %(default)s)",
    )
    add_log_level(arguments)
    return arguments


NAME: Final = "autoscale-groups"
CONNECTIONS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=32)
# Some are for the scheduler; each response of an agent may take 256 KiB.
TO_AGENTS: Final = httpx.Limits(max_connections=MAX_QUERIES + 16, max_keepalive_connections=64)
LIMITS: Final = Limits(connections=256, per_peer=64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT, then return 0; return 2 if it cannot start."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    return run(NAME, _run(options))


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    file = None if options.settings is None else FollowedFile(options.settings, parse_settings)
    settings = GroupsSettings() if file is None else file.load()
    access = credentials(options.kubeconfig, clock)
    async with (
        # Two clients, because the first sends our credentials for the API server, which no other program must see.
        http_client(access, CONNECTIONS, NAME) as http,
        # For addresses in the cluster, so ignore a proxy in the environment.
        httpx.AsyncClient(limits=TO_AGENTS, trust_env=False, cookies=no_cookies()) as to_programs,
    ):
        api = HttpApi(http, access.token)
        tokens = tokens_of(options.explain_token, api, access.token, clock)
        agents = HttpMemberAgents(to_programs, options.agents_port, tokens)
        # Random, because a restarted process keeps the hostname.
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        denials = HttpDenials(to_programs, options.scheduler, clock, tokens)
        program = assemble(api, clock, settings, identity, agents=agents, denials=denials)
        jobs = [program.run(api, clock)]
        if file is not None:
            jobs.append(file.follow(program.use, program.telemetry, clock))
        async with background_jobs(*jobs):
            app = GuardedExplanations(groups_app(program), explain_access(options.explain_token, api, clock))
            await serve([Listener("metrics", app, options.listen, limits=LIMITS)], stop)


if __name__ == "__main__":
    sys.exit(main())

"""``autoscale-scheduler``: the extender and permit service (S4.10, S4.5). Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import logging
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
from scheduler_plugin.app import Parts, agents_app, assemble, extender_app, probes_app
from scheduler_plugin.auth.authenticator import CONCURRENCY
from scheduler_plugin.cluster.http_api import HttpApi
from scheduler_plugin.cluster.token_reviews import TokenReviews
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.service.heap import set_aside
from scheduler_plugin.settings.document import SettingsError
from scheduler_plugin.settings.file import SettingsFile
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.serving import Listener, ListenError, Tls, serve

CONNECTIONS: Final = httpx.Limits(max_connections=128, max_keepalive_connections=64)
REVIEW_CONNECTIONS: Final = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
"""A flood of tokens must not hold the connections that bindings and permits are written over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the scheduler until SIGTERM or SIGINT; the process's exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    status = 0
    try:
        asyncio.run(_run(options))
    except* (SettingsError, CredentialsError, ListenError) as problems:
        print(f"autoscale-scheduler: {_first(problems)}", file=sys.stderr)
        status = 2
    return status


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autoscale-scheduler",
        description="Places postgres VMs (kube-scheduler extender) and permits their growth (agents).",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("/etc/autoscale-scheduler/config.yaml"),
        metavar="FILE",
        help="settings; read again when the file changes (default: %(default)s)",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        default=os.environ.get("KUBECONFIG"),
        metavar="FILE",
        help="how to reach the Kubernetes API (default: $KUBECONFIG, else the pod's service account)",
    )
    for name, port, what in (
        ("agents", 10299, "agents ask for permits"),
        ("extender", 10298, "kube-scheduler calls /filter /prioritize /bind /preempt"),
        ("metrics", 10297, "/metrics /healthz /readyz /nodes /explain/NAMESPACE/VM"),
    ):
        parser.add_argument(
            f"--listen-{name}",
            default=f"0.0.0.0:{port}",
            metavar="HOST:PORT",
            help=f"where {what} (default: %(default)s)",
        )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate for agents and extender, in PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key, in PEM")
    parser.add_argument(
        "--extender-client-ca",
        type=Path,
        metavar="FILE",
        help="kube-scheduler must show a client certificate of this authority",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level to log to stderr (default: %(default)s)",
    )
    return parser


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    telemetry = Telemetry(clock.now)
    file = SettingsFile(options.config, telemetry)
    settings = file.load()
    telemetry.settings_accepted(file.generation)
    found = _credentials(options, clock)
    async with _client(found, CONNECTIONS) as client, _client(found, REVIEW_CONNECTIONS) as review_client:
        api, reviews = HttpApi(client, found.token), TokenReviews(HttpApi(review_client, found.token))
        identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        parts = assemble(ClusterWriter(api, identity), reviews, clock, settings, telemetry)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(parts.run(api)),
                tasks.create_task(file.run(clock, parts.context.feed.use)),
                tasks.create_task(set_aside(clock, lambda: parts.context.ledger.is_ready)),
            ]
            await serve(_listeners(options, parts), clock, stop)
            for task in background:
                task.cancel()


def _client(found: Credentials, limits: httpx.Limits) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=found.server, verify=found.tls, limits=limits, trust_env=False)


def _credentials(options: argparse.Namespace, clock: SystemClock) -> Credentials:
    if options.kubeconfig is None:
        return from_pod(os.environ, clock)
    return from_kubeconfig(Path(options.kubeconfig), clock)


def _listeners(options: argparse.Namespace, parts: Parts) -> list[Listener]:
    agents_tls = extender_tls = None
    if options.tls_cert is not None and options.tls_key is not None:
        agents_tls = Tls(options.tls_cert, options.tls_key)
        extender_tls = Tls(options.tls_cert, options.tls_key, options.extender_client_ca)
    elif options.tls_cert or options.tls_key or options.extender_client_ca:
        raise ListenError("--tls-cert and --tls-key go together, and --extender-client-ca needs both")
    return [
        Listener("agents", agents_app(parts.service), options.listen_agents, agents_tls),
        Listener("extender", extender_app(parts.service), options.listen_extender, extender_tls),
        Listener("metrics", probes_app(parts.context), options.listen_metrics),
    ]


if __name__ == "__main__":
    sys.exit(main())

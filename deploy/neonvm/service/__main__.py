"""``neonvm-controller``: runs VirtualMachines on a real cluster. Run with ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import sys
from collections.abc import Sequence
from typing import Final

import httpx2 as httpx
import yaml

from deploy.kube.client import ApiClient
from deploy.neonvm.access.connections import RunnerConnections
from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.remote.address_choice import AddressRange
from deploy.neonvm.service.app import ControllerService, LeadershipLostError, ServiceDependencies
from deploy.neonvm.service.fenced_transport import FencedTransport
from deploy.neonvm.service.options import DESCRIPTION, parser
from deploy.neonvm.service.runner_authority import RunnerAuthority
from deploy.neonvm.service.telemetry import VmControllerTelemetry
from protocol.kubernetes.objects import child
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock
from protocol.runtime.keep_alive import probed_transport
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.kubernetes.lease import Leadership, LeaseTerms
from protocol.runtime.program import credentials, prepare, run, stop_on_signals
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app, standing

NAME: Final = "neonvm-controller"
CONNECTIONS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=32)
LIMITS: Final = Limits(connections=256, per_peer=64)
LOST: Final = 3
"""The exit status of a leader that lost its Lease; it is started again and stands by."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; 0 then, 2 if it cannot start, 3 if the Lease was lost."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    status = 0
    try:
        status = run(NAME, _run(options))
    # A group, because the service runs in task groups.
    except* LeadershipLostError:
        status = LOST
    return status


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    login = credentials(options.kubeconfig, clock)
    namespace, _, name = options.lease.partition("/")
    # The host name alone would make a restarted container take its own old Lease for valid.
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    async with http_client(login, CONNECTIONS, NAME) as for_lease:
        # The Lease is renewed over a client of its own: a fence that closes must not keep it from being renewed.
        plain = HttpApi(for_lease, login.token)
        leadership = Leadership(plain, clock, LeaseTerms(ObjectName(namespace, name)), identity)
        authority = RunnerAuthority(plain, leadership, clock, namespace)
        connections = RunnerConnections(authority.showing, authority.pod_of)
        inner = probed_transport(login.tls, CONNECTIONS)
        fenced = httpx.AsyncClient(
            base_url=login.server,
            headers={"User-Agent": NAME},
            transport=FencedTransport(inner, lambda: leadership.remaining),
        )
        async with ApiClient(HttpApi(fenced, login.token)) as client:
            form, addresses = _form(options), AddressRange.parse(options.addresses)
            service = ControllerService(
                ServiceDependencies(
                    client,
                    leadership,
                    connections.ask,
                    connections.monitor,
                    clock,
                    form,
                    addresses,
                    authority,
                    connections.forget,
                    namespace if options.network_policies else "",
                )
            )
            async with asyncio.TaskGroup() as tasks:
                background = tasks.create_task(service.run())
                await serve([_listener(options, service)], stop)
                # It runs until cancelled; cancelling it releases the Lease.
                background.cancel()


def _listener(options: argparse.Namespace, service: ControllerService) -> Listener:
    app = probes_app(
        "neonvm-controller",
        DESCRIPTION,
        lambda: standing(service.missing, service.deps.leadership.leads),
        VmControllerTelemetry(service.caches[VIRTUAL_MACHINES], lambda: service.deps.leadership.leads).page,
    )
    return Listener("metrics", app, options.listen, limits=LIMITS)


def _form(options: argparse.Namespace) -> RunnerForm:
    # An installation without agents has no such file.
    has_sidecar = options.sidecar is not None and options.sidecar.is_file()
    sidecar = yaml.safe_load(options.sidecar.read_text()) if has_sidecar else None
    return RunnerForm(
        options.runner_image,
        options.guest_resource,
        child(sidecar, "spec") if sidecar else None,
        pod_security=options.pod_security,
        pull_secrets=options.pull_secret,
    )


if __name__ == "__main__":
    sys.exit(main())

"""``neonvm-controller``: runs VirtualMachines on a real cluster. See ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx2 as httpx

from deploy.kube.client import ApiClient
from deploy.neonvm.access.connections import RunnerConnections
from deploy.neonvm.objects.pod_form import POD_SECURITY, RunnerForm
from deploy.neonvm.remote.address_choice import AddressRange
from deploy.neonvm.service.app import ControllerService, LeadershipLostError, ServiceDependencies
from deploy.neonvm.service.runner_authority import RunnerAuthority
from deploy.neonvm.service.telemetry import VmControllerTelemetry
from deploy.neonvm.texts import controller as texts
from protocol.field_errors import shown
from protocol.kubernetes.objects import Json, child
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import SystemClock
from protocol.runtime.keep_alive import probed_transport
from protocol.runtime.kubernetes.http_api import HttpApi, http_client
from protocol.runtime.kubernetes.lease import Leadership, LeaseTerms
from protocol.runtime.program import (
    StartError,
    add_kubeconfig,
    add_log_level,
    credentials,
    prepare,
    run,
    stop_on_signals,
)
from protocol.runtime.serving.limits import Limits
from protocol.runtime.serving.listeners import Listener, serve
from protocol.runtime.serving.probes import probes_app, readiness
from protocol.units import Seconds
from protocol.yaml_text import YamlError, read_yaml

_READS = frozenset({"GET", "HEAD"})


class FencedTransport(httpx.AsyncBaseTransport):
    """Passes requests to ``inner``, writes only while this process holds the Lease. ``remaining`` is the time left."""

    def __init__(self, inner: httpx.AsyncBaseTransport, remaining: Callable[[], Seconds]) -> None:
        self._inner = inner
        self._remaining = remaining

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. A write without the Lease raises ``ConnectError``, one that outlasts it ``ReadTimeout``."""
        if request.method in _READS:
            return await self._inner.handle_async_request(request)
        left = self._remaining()
        if left <= 0:
            raise httpx.ConnectError(texts.NO_LEASE, request=request)
        try:
            # One timeout for the whole request: with one per step, a write that waited for a connection could be sent
            # too late.
            async with asyncio.timeout(left):
                return await self._inner.handle_async_request(request)
        except TimeoutError:
            raise httpx.ReadTimeout(texts.LEASE_ENDED, request=request) from None

    async def aclose(self) -> None:
        """Close ``inner``."""
        await self._inner.aclose()


DESCRIPTION: Final = "Runs VirtualMachines in pods, resizes and migrates them. Only the leader acts."


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    flags = argparse.ArgumentParser(prog="neonvm-controller", description=DESCRIPTION)
    for flag, default, metavar, what in (
        # The registry of a local kind cluster; the chart names a released image.
        ("--runner-image", "localhost:5001/neonvm-runner:dev", "IMAGE", "image of runner pods"),
        ("--guest-resource", "", "NAME", "extended resource that pods request for /dev/kvm; empty for none"),
        ("--addresses", "10.111.0.1-10.111.254.254", "FIRST-LAST", "range of IPs reserved for VMs"),
        ("--lease", "kube-system/neonvm-controller", "NAMESPACE/NAME", "Lease for leader election"),
        ("--listen", "0.0.0.0:10293", "HOST:PORT", "address of /metrics, /healthz and /readyz"),
    ):
        flags.add_argument(flag, default=default, metavar=metavar, help=f"{what} (default: %(default)s)")
    sidecar = "partial pod with the agent's container for the pod of each VM; no agent if the file does not exist"
    flags.add_argument("--sidecar", type=Path, default=None, metavar="FILE", help=sidecar)
    policies = "maintain a NetworkPolicy for the ports of runner pods in each namespace with VMs (default: yes)"
    # Also gives --no-network-policies.
    flags.add_argument("--network-policies", action=argparse.BooleanOptionalAction, default=True, help=policies)
    secret = "image pull Secret in the namespaces of VMs (repeatable)"  # noqa: S105 - its help
    flags.add_argument("--pull-secret", action="append", default=[], metavar="NAME", help=secret)
    security = "security context of runner pods (default: user and group 65532, RuntimeDefault)"
    flags.add_argument("--pod-security", type=_security, default=POD_SECURITY, metavar="JSON", help=security)
    add_kubeconfig(flags)
    add_log_level(flags)
    return flags


def _security(typed: str) -> Json:
    """A security context as JSON. Raises ``ArgumentTypeError``."""
    try:
        parsed = json.loads(typed)
    except ValueError as error:
        # argparse shows the message of this error; of a ValueError it would show only that the value is invalid.
        raise argparse.ArgumentTypeError(f"invalid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return parsed


LOG: Final = logging.getLogger("neonvm.controller")

NAME: Final = "neonvm-controller"
CONNECTIONS: Final = httpx.Limits(max_connections=64, max_keepalive_connections=32)
LIMITS: Final = Limits(connections=256, per_peer=64)
LOST: Final = 3
"""Exit status of a leader that lost its Lease; the restarted container is a standby."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 0, 2 if it cannot start, or 3 if the Lease was lost."""
    options = parser().parse_args(arguments)
    prepare(options.log_level)
    try:
        return run(NAME, _run(options))
    except LeadershipLostError:
        return LOST
    # A group, because the service runs in task groups.
    except ExceptionGroup as group:
        lost, others = group.split(LeadershipLostError)
        if lost is None:
            raise
        # Errors of tasks that are being stopped must not hide the loss of the Lease.
        if others is not None:
            LOG.error(texts.FAILED_AT_END, exc_info=others)
        return LOST


async def _run(options: argparse.Namespace) -> None:
    clock, stop = SystemClock(), stop_on_signals()
    login = credentials(options.kubeconfig, clock)
    namespace, _, name = options.lease.partition("/")
    # With the host name alone, a restarted container would continue to hold its old Lease.
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    async with http_client(login, CONNECTIONS, NAME) as lease_client:
        # A separate client without the fence, which would block renewals once the Lease has expired.
        plain = HttpApi(lease_client, login.token)
        leadership = Leadership(plain, clock, LeaseTerms(ObjectName(namespace, name)), identity)
        authority = RunnerAuthority(plain, leadership, clock, namespace)
        connections = RunnerConnections(authority.identity, authority.pod_of, lambda: leadership.leads)
        inner = probed_transport(login.tls, CONNECTIONS)
        fenced_client = httpx.AsyncClient(
            base_url=login.server,
            headers={"User-Agent": NAME},
            transport=FencedTransport(inner, lambda: leadership.remaining),
        )
        async with ApiClient(HttpApi(fenced_client, login.token)) as client:
            form, addresses = _form(options), AddressRange.parse(options.addresses)
            reach, policy_namespace = (connections, connections.monitor), namespace if options.network_policies else ""
            deps = ServiceDependencies(
                client, leadership, *reach, clock, form, addresses, authority, connections.forget, policy_namespace
            )
            service = ControllerService(deps)
            async with asyncio.TaskGroup() as tasks:
                background = tasks.create_task(service.run())
                await serve([_listener(options, service)], stop)
                # Cancelling the service releases the Lease.
                background.cancel()


def _listener(options: argparse.Namespace, service: ControllerService) -> Listener:
    app = probes_app(
        "neonvm-controller",
        DESCRIPTION,
        lambda: readiness(service.missing, service.deps.leadership.leads),
        VmControllerTelemetry(service.caches[VIRTUAL_MACHINES], lambda: service.deps.leadership.leads).page,
    )
    return Listener("metrics", app, options.listen, limits=LIMITS)


def _form(options: argparse.Namespace) -> RunnerForm:
    # Installations without agents do not have the file.
    has_sidecar = options.sidecar is not None and options.sidecar.is_file()
    return RunnerForm(
        options.runner_image,
        options.guest_resource,
        _sidecar(options.sidecar) if has_sidecar else None,
        pod_security=options.pod_security,
        pull_secrets=options.pull_secret,
    )


def _sidecar(path: Path) -> Json | None:
    """The spec of the partial pod in a file; None if the file is empty. Raises ``StartError``."""
    try:
        pod = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartError(f"--sidecar: {path}: {error.strerror}") from None
    except (UnicodeDecodeError, YamlError) as error:
        raise StartError(f"--sidecar: {path}: {error}") from None
    if pod is None:
        return None
    if not isinstance(pod, dict) or not isinstance(pod.get("spec"), dict):
        raise StartError(f"--sidecar: {path}: expected a pod with a spec, got {shown(pod)}")
    return child(pod, "spec")


if __name__ == "__main__":
    sys.exit(main())

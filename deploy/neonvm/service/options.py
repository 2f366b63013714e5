"""The command line of ``neonvm-controller``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from deploy.neonvm.objects.pod_form import POD_SECURITY
from protocol.kubernetes.objects import Json
from protocol.runtime.program import add_kubeconfig, add_log_level

DESCRIPTION: Final = "Runs VirtualMachines in pods, resizes them, and moves them between nodes. One replica acts."


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    flags = argparse.ArgumentParser(prog="neonvm-controller", description=DESCRIPTION)
    for flag, default, metavar, what in (
        # The registry of a local kind cluster; the chart names a released image.
        ("--runner-image", "localhost:5001/neonvm-runner:dev", "IMAGE", "the image of runner pods"),
        ("--guest-resource", "", "NAME", "the resource that brings a pod its devices; empty: none is asked for"),
        (
            "--addresses",
            "10.111.0.1-10.111.254.254",
            "FIRST-LAST",
            "the VMs' addresses, and nothing else's",
        ),
        ("--lease", "kube-system/neonvm-controller", "NAMESPACE/NAME", "the Lease that decides which replica acts"),
        ("--listen", "0.0.0.0:10293", "HOST:PORT", "where /metrics /healthz /readyz are"),
    ):
        flags.add_argument(flag, default=default, metavar=metavar, help=f"{what} (default: %(default)s)")
    flags.add_argument(
        "--sidecar",
        type=Path,
        default=None,
        metavar="FILE",
        help="a pod's part: the agent beside each VM (none where there is no such file)",
    )
    flags.add_argument(
        "--network-policies",
        # Also gives --no-network-policies.
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep a NetworkPolicy around the ports of runner pods in each namespace that has VMs (default: yes)",
    )
    flags.add_argument(
        "--pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="a Secret in the namespaces of VMs with which their pods pull images (repeatable)",
    )
    flags.add_argument(
        "--pod-security",
        type=_security,
        default=POD_SECURITY,
        metavar="JSON",
        help="the security context of runner pods (default: user and group 65532, RuntimeDefault)",
    )
    add_kubeconfig(flags)
    add_log_level(flags)
    return flags


def _security(typed: str) -> Json:
    """A security context as JSON. Raises ``ArgumentTypeError``."""
    try:
        parsed = json.loads(typed)
    except ValueError as error:
        # argparse shows the message of this error; of a ValueError it would show only that the value is invalid.
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return parsed

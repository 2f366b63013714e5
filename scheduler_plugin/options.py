"""Command line of ``autoscale-scheduler``.

Agents connect over the network, kube-scheduler over the pod's loopback interface with the scheme from its own
configuration, so each port has its own certificate.
"""

from __future__ import annotations

import argparse
import os
import ssl
from functools import partial
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import Final

from protocol.messages import ObjectName
from protocol.runtime.kubernetes.lease import LeaseTerms
from protocol.runtime.program import add_explain_token, add_kubeconfig, add_log_level
from protocol.runtime.serving.listeners import ListenError
from protocol.runtime.tls_files import FollowedTls, server_tls
from protocol.units import Seconds
from scheduler_plugin.term import SETTLE

Followed = FollowedTls[ssl.SSLContext]

POLL_INTERVAL: Final = Seconds(0.5)
"""Polling interval for a released Lease."""


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    flags = argparse.ArgumentParser(
        prog="autoscale-scheduler",
        description="Places postgres VMs (kube-scheduler extender) and permits their growth (agents).",
    )
    flags.add_argument(
        "--config",
        type=Path,
        default=Path("/etc/autoscale-scheduler/config.yaml"),
        metavar="FILE",
        help="settings file; reloaded when it changes (default: %(default)s)",
    )
    add_kubeconfig(flags)
    add_explain_token(flags)
    _add_listeners(flags)
    _add_lease(flags)
    add_log_level(flags)
    return flags


def _add_lease(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lease",
        type=_object_name,
        metavar="NAMESPACE/NAME",
        help="Lease that elects the active replica (default: none; this is the only replica)",
    )
    parser.add_argument(
        "--lease-duration",
        type=partial(_seconds, least=2),
        default=9,
        metavar="SECONDS",
        help="time after which an unrenewed Lease is free, 2 to 60 whole seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--hold-back",
        type=partial(_seconds, least=0),
        default=int(SETTLE),
        metavar="SECONDS",
        help="without a Lease: wait after listing the cluster, because writes of a predecessor may still be in flight,"
        " 0 to 60 whole seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--leader-endpoints",
        action="append",
        default=[],
        metavar="NAME",
        help="EndpointSlice, in the Lease's namespace, that the leader points to itself; may be repeated",
    )
    parser.add_argument(
        "--pod-ip",
        # The manifests set it through the downward API.
        default=os.environ.get("POD_IP", ""),
        metavar="ADDRESS",
        help="IPv4 address of this replica for its clients (default: $POD_IP)",
    )
    parser.add_argument(
        "--node",
        default=os.environ.get("NODE_NAME", ""),
        metavar="NAME",
        help="node of this replica, so that a kube-scheduler in the same pod can reach it (default: $NODE_NAME)",
    )


def _object_name(text: str) -> ObjectName:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise argparse.ArgumentTypeError(f"expected NAMESPACE/NAME, got {text!r}")
    return ObjectName(namespace, name)


def _seconds(text: str, least: int) -> int:
    # ``int`` would also accept signs, spaces, underscores and other digits.
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= 60):
        raise argparse.ArgumentTypeError(f"expected {least} to 60 whole seconds, got {text!r}")
    return int(text)


def lease_terms(options: argparse.Namespace) -> LeaseTerms:
    """Times of the Lease: about four renewals per duration, and frequent polling by standbys.

    Raises ``ListenError`` if clients could not reach this replica.
    """
    if options.leader_endpoints:
        _refuse_other_families(options.pod_ip)
    # 2/9 of the duration: 2 s of the default 9 s.
    duration = Seconds(float(options.lease_duration))
    return LeaseTerms(options.lease, duration, Seconds(duration * 2 / 9), POLL_INTERVAL)


def _refuse_other_families(pod_ip: str) -> None:
    if not pod_ip:
        raise ListenError("--leader-endpoints needs --pod-ip")
    try:
        # The slices are created with ``addressType: IPv4``.
        IPv4Address(pod_ip)
    except AddressValueError:
        why = "IPv6-only clusters are not supported"
        raise ListenError(f"--pod-ip: expected an IPv4 address, got {pod_ip!r}: {why}") from None


def _add_listeners(parser: argparse.ArgumentParser) -> None:
    for name, port, what in (
        ("agents", 10299, "requests of agents"),
        ("extender", 10298, "kube-scheduler: /filter /prioritize /bind /preempt"),
        ("metrics", 10297, "/metrics /healthz /readyz, and with a token /nodes /settings /explain/NAMESPACE/VM"),
    ):
        parser.add_argument(
            f"--listen-{name}",
            default=f"0.0.0.0:{port}",
            metavar="HOST:PORT",
            help=f"address for {what} (default: %(default)s); each port has /openapi.json",
        )
    for prefix, client in (("", "agents"), ("extender-", "kube-scheduler, whose extender then needs https://")):
        parser.add_argument(f"--{prefix}tls-cert", type=Path, metavar="FILE", help=f"certificate for {client}, in PEM")
        parser.add_argument(f"--{prefix}tls-key", type=Path, metavar="FILE", help="that certificate's key, in PEM")
    parser.add_argument(
        "--extender-client-ca",
        type=Path,
        metavar="FILE",
        help="require a client certificate of this CA from kube-scheduler",
    )
    parser.add_argument(
        "--extender-client-name",
        default="",
        metavar="NAME",
        help="required common name of that client certificate (default: any)",
    )


def agents_tls(options: argparse.Namespace) -> Followed | None:
    """TLS context for agents. Raises ``ListenError``."""
    return _tls("agents", "", options.tls_cert, options.tls_key, None)


def extender_tls(options: argparse.Namespace) -> Followed | None:
    """TLS context for kube-scheduler with its client certificate's name. Raises ``ListenError``."""
    certificate, key, authority = options.extender_tls_cert, options.extender_tls_key, options.extender_client_ca
    tls = _tls("extender", "extender-", certificate, key, authority)
    if tls is None and authority is not None:
        raise ListenError("--extender-client-ca needs --extender-tls-cert and --extender-tls-key")
    # Without a CA no client certificate is requested, so its name would not be checked.
    if options.extender_client_name and authority is None:
        raise ListenError("--extender-client-name needs --extender-client-ca")
    return tls


def _tls(name: str, prefix: str, certificate: Path | None, key: Path | None, ca: Path | None) -> Followed | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ListenError(f"--{prefix}tls-cert and --{prefix}tls-key must be set together")
    return server_tls(name, certificate, key, ca)

"""Command line of ``autoscale-dashboard``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protocol.runtime.program import add_explain_token, add_kubeconfig, add_log_level
from protocol.runtime.url_hosts import server_url
from protocol.units import Bytes, QuantityError

DESCRIPTION: Final = (
    "Serves the page, a live, read-only view of the fleet. Users sign in with a token of the cluster and see VMs in "
    "namespaces in which they may list VMs."
)

_LEAST_VOLUME: Final = 16 * 1024**2
"""A smaller volume cannot hold an hour of a small fleet."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the flags; exits with 2 if they are invalid."""
    flags = parser()
    options = flags.parse_args(arguments)
    if (options.certificate is None) != (options.key is None):
        flags.error("--certificate and --key must be set together")
    if options.labels and options.prometheus:
        flags.error("--label cannot be combined with --prometheus, which has no labels of VMs; use --history")
    return options


def _url(text: str) -> str:
    try:
        # An empty URL disables queries.
        return text and server_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bytes(text: str) -> int:
    try:
        size = Bytes.parse(text).value
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < _LEAST_VOLUME:
        raise argparse.ArgumentTypeError(f"expected at least 16Mi, got {text!r}")
    return size


def parser() -> argparse.ArgumentParser:
    """Return the parser with all flags and their defaults."""
    flags = argparse.ArgumentParser(prog="autoscale-dashboard", description=DESCRIPTION)
    add_kubeconfig(flags)
    add_explain_token(flags)
    where = "address of the page (default: %(default)s)"
    flags.add_argument("--listen", default="0.0.0.0:10290", metavar="HOST:PORT", help=where)
    probes = "address of /metrics /healthz /readyz (default: %(default)s)"
    flags.add_argument("--metrics-listen", default="0.0.0.0:10289", metavar="HOST:PORT", help=probes)
    scheduler = "URL of the scheduler's explanations (default: %(default)s)"
    usual = "http://autoscaling-scheduler:10297"
    flags.add_argument("--scheduler", default=usual, type=_url, metavar="URL", help=scheduler)
    groups = "URL of the explanations of autoscale-groups (default: none are shown)"
    flags.add_argument("--groups", default="", type=_url, metavar="URL", help=groups)
    agents = "namespace of the node agents (default: each VM's agent is in its pod)"
    flags.add_argument("--agents-namespace", default="", metavar="NAMESPACE", help=agents)
    history = "file that records the history for charts, decisions and costs (default: none is recorded)"
    flags.add_argument("--history", type=Path, metavar="FILE", help=history)
    size = "size of the volume of --history; the file uses at most a third of it, and at most 1Gi (default: 3Gi)"
    flags.add_argument("--history-volume", default="3Gi", type=_bytes, metavar="SIZE", help=size)
    label = "key of a label of VMs to record, by which costs can be grouped; repeatable"
    flags.add_argument("--label", action="append", default=[], metavar="KEY", dest="labels", help=label)
    prometheus = "URL of a Prometheus that has the history; then nothing is recorded"
    flags.add_argument("--prometheus", default="", type=_url, metavar="URL", help=prometheus)
    flags.add_argument("--title", default="", help="name of the cluster on the page")
    for name, what in (("certificate", "certificate chain"), ("key", "key")):
        flags.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"{what} for HTTPS (default: HTTP)")
    add_log_level(flags)
    return flags

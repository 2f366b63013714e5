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
    "The page: a fleet as it is now, live in a browser. People sign in with a token of the cluster and see the VMs of "
    "the namespaces that they may list. It changes nothing."
)

_LEAST_VOLUME: Final = 16 * 1024**2
"""A smaller volume does not hold an hour of a small fleet."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the flags; exits with 2 if they are invalid."""
    flags = parser()
    options = flags.parse_args(arguments)
    if (options.certificate is None) != (options.key is None):
        flags.error("--certificate and --key go together: without both the page would be plain HTTP")
    if options.labels and options.prometheus:
        flags.error("--label goes with --history: a Prometheus does not know the labels of VMs")
    return options


def _url(text: str) -> str:
    try:
        # Empty disables queries of the program.
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
    """All flags, with their defaults."""
    flags = argparse.ArgumentParser(prog="autoscale-dashboard", description=DESCRIPTION)
    add_kubeconfig(flags)
    add_explain_token(flags)
    where = "where the page is (default: %(default)s)"
    flags.add_argument("--listen", default="0.0.0.0:10290", metavar="HOST:PORT", help=where)
    probes = "where /metrics /healthz /readyz are (default: %(default)s)"
    flags.add_argument("--metrics-listen", default="0.0.0.0:10289", metavar="HOST:PORT", help=probes)
    scheduler = "where the scheduler explains itself (default: %(default)s)"
    usual = "http://autoscaling-scheduler:10297"
    flags.add_argument("--scheduler", default=usual, type=_url, metavar="URL", help=scheduler)
    groups = "where the groups' program explains itself (default: it is not asked)"
    flags.add_argument("--groups", default="", type=_url, metavar="URL", help=groups)
    agents = "the namespace of the agents that run on each node (default: each VM's agent is in its pod)"
    flags.add_argument("--agents-namespace", default="", metavar="NAMESPACE", help=agents)
    history = "where what was is kept: charts, decisions and costs (default: it is not)"
    flags.add_argument("--history", type=Path, metavar="FILE", help=history)
    size = "the volume that --history is on: the file takes a third of it at most, and no more than 1Gi (default: 3Gi)"
    flags.add_argument("--history-volume", default="3Gi", type=_bytes, metavar="SIZE", help=size)
    label = "a label of VMs whose value is kept too, and by which costs can be seen; may be repeated"
    flags.add_argument("--label", action="append", default=[], metavar="KEY", dest="labels", help=label)
    prometheus = "a Prometheus that has what was; nothing is recorded then"
    flags.add_argument("--prometheus", default="", type=_url, metavar="URL", help=prometheus)
    flags.add_argument("--title", default="", help="what the cluster is called on the page")
    for name, what in (("certificate", "certificate chain"), ("key", "key")):
        flags.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"the {what} for HTTPS (default: HTTP)")
    add_log_level(flags)
    return flags

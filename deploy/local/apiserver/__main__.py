"""``python -m deploy.local.apiserver``: a Kubernetes API server for one machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local.apiserver.app import Settings
from deploy.local.apiserver.server import admin_tokens, build, secret_file, write_kubeconfig
from deploy.local.apiserver.serving import Server, listen
from deploy.local.apiserver.world import real_world

_log = logging.getLogger("apiserver")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.apiserver", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="where objects and the signing key are kept")
    parser.add_argument("--listen", action="append", metavar="HOST:PORT", help="may be given again (127.0.0.1:6443)")
    parser.add_argument("--fd", action="append", type=int, metavar="N", help="an inherited listening socket")
    parser.add_argument("--kubeconfig-out", type=Path, required=True, metavar="FILE", help="written for the admin")
    parser.add_argument("--admin-token-file", type=Path, required=True, metavar="FILE", help="made where missing")
    return parser.parse_args(argv)


def _sockets(arguments: argparse.Namespace) -> list[socket.socket]:
    inherited = [socket.socket(fileno=number) for number in arguments.fd or ()]
    addresses = arguments.listen or ([] if inherited else ["127.0.0.1:6443"])
    return [*(listen(address) for address in addresses), *inherited]


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else shown}:{port}"


async def _serve(arguments: argparse.Namespace, sockets: list[socket.socket]) -> None:
    token = secret_file(arguments.admin_token_file)
    url = _url(sockets[0])
    api_server = build(arguments.data_dir, admin_tokens(token), real_world(), Settings())
    try:
        write_kubeconfig(arguments.kubeconfig_out, url, token)
        _log.info("serving url=%s data_dir=%s revision=%d", url, arguments.data_dir, api_server.api.store.revision)
        server = Server(api_server.app, api_server.stop_watches)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        await server.serve(sockets)
    finally:
        api_server.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Returns 0, or 2 where an address cannot be used."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        sockets = _sockets(arguments)
    except (OSError, ValueError) as error:
        _log.error("cannot listen: %s", error)
        return 2
    asyncio.run(_serve(arguments, sockets))
    _log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())

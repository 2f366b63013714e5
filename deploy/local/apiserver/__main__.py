"""``python -m deploy.local.apiserver``: a Kubernetes API server for one machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local.apiserver.apimachinery.environment import system_environment
from deploy.local.apiserver.server import ApiServer, LocalApiServer, admin_tokens, build, listen
from deploy.local.certificates import authority, server_context
from deploy.local.kubeconfigs import ADMIN, kubeconfig, token_login
from deploy.local.private_file import secret_file, write_private
from protocol.runtime.garbage import tune_gc
from protocol.runtime.json_log import log_as_json
from protocol.runtime.open_files import allow_open_files

OPEN_FILES = 65_536
"""Each VM's agent watches the VM over its own connection."""

_log = logging.getLogger("apiserver")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.apiserver", description=__doc__)
    add = parser.add_argument
    add("--data-dir", type=Path, required=True, metavar="DIR", help="folder of the objects and keys")
    add("--listen", action="append", metavar="HOST:PORT", help="serve HTTP here; repeatable (default: 127.0.0.1:6443)")
    add("--fd", action="append", type=int, metavar="N", help="serve HTTP on an inherited listening socket")
    add(
        "--listen-tls",
        action="append",
        metavar="HOST:PORT",
        help="serve HTTPS here, which kubectl needs; port 0 picks a free one",
    )
    add("--kubeconfig-out", type=Path, required=True, metavar="FILE", help="write the administrator's kubeconfig here")
    add("--admin-token-file", type=Path, required=True, metavar="FILE", help="its bearer token; created if missing")
    return parser.parse_args(argv)


def _url(scheme: str, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    # Clients cannot connect to a wildcard address; they get loopback instead.
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{scheme}://{reachable}:{port}"


async def _serve(arguments: argparse.Namespace, plain: list[socket.socket], secure: list[socket.socket]) -> None:
    token = secret_file(arguments.admin_token_file)
    environment = system_environment()
    api_server = build(arguments.data_dir, admin_tokens(token), environment)
    try:
        servers = [(_server(api_server, None), plain)] if plain else []
        trusted = b""
        if secure:
            signer = authority(arguments.data_dir, environment.now())
            addresses = {listening.getsockname()[0] for listening in secure}
            servers.append((_server(api_server, server_context(signer, addresses, environment.now())), secure))
            trusted = signer.pair.certificate
        url = _url("https", secure[0]) if secure else _url("http", plain[0])
        # The sockets are listening already, so a client that waits for this file can connect.
        write_private(arguments.kubeconfig_out, kubeconfig(url, trusted, ADMIN, token_login(token)))
        _announce(url, arguments, api_server)
        await _run(servers, api_server)
    finally:
        api_server.close()


def _server(api_server: ApiServer, context: ssl.SSLContext | None) -> LocalApiServer:
    return LocalApiServer(api_server.app, api_server.stop_watches, context)


def _announce(url: str, arguments: argparse.Namespace, api_server: ApiServer) -> None:
    fields = {"url": url, "data_dir": str(arguments.data_dir), "revision": api_server.api.store.revision}
    _log.info("serving", extra=fields)
    if url.startswith("http:"):
        _log.info("kubectl sends no token over HTTP; use --listen-tls to make %s usable", arguments.kubeconfig_out)


async def _run(servers: list[tuple[LocalApiServer, list[socket.socket]]], api_server: ApiServer) -> None:
    def stop() -> None:
        for server, _ in servers:
            server.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(api_server.run_controllers())
        for server, sockets in servers:
            tasks.create_task(server.serve(sockets))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 0, or 2 if an address cannot be used."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    log_as_json()
    allow_open_files(OPEN_FILES)
    tune_gc()
    try:
        inherited = [socket.socket(fileno=number) for number in arguments.fd or ()]
        secure = [listen(address) for address in arguments.listen_tls or ()]
        # The default address applies only if neither an address nor a socket is given.
        addresses = arguments.listen or ([] if inherited or secure else ["127.0.0.1:6443"])
        plain = [*(listen(address) for address in addresses), *inherited]
    except (OSError, ValueError) as error:
        _log.error("cannot listen: %s", error)
        return 2
    asyncio.run(_serve(arguments, plain, secure))
    _log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())

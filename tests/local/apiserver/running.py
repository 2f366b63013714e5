"""A real API server on a free loopback port, inside the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local.apiserver.apimachinery.environment import system_environment
from deploy.local.apiserver.server import ApiServer, LocalApiServer, admin_tokens, build, listen
from deploy.local.certificates import authority, server_context
from deploy.local.kubeconfigs import ADMIN, kubeconfig, token_login
from deploy.local.private_file import write_private

TOKEN = "the-admin-of-this-test"


@dataclass(frozen=True, slots=True)
class ApiServerHandle:
    """The server's address (plain HTTP) and credentials. The kubeconfig leads to the same server over TLS.

    ``server`` is for looking behind the HTTP face.
    """

    url: str
    token: str
    kubeconfig_path: Path
    server: ApiServer


@asynccontextmanager
async def running_api_server(tmp_path: Path) -> AsyncIterator[ApiServerHandle]:
    """Serves ``tmp_path/apiserver`` until the block ends; serving the same path again finds the same objects."""
    data_dir = tmp_path / "apiserver"
    environment = system_environment()
    api_server = build(data_dir, admin_tokens(TOKEN), environment)
    signer = authority(data_dir, environment.now())
    plain, secure = listen("127.0.0.1:0"), listen("127.0.0.1:0")
    kubeconfig_path = data_dir / "kubeconfig"
    url = f"https://127.0.0.1:{secure.getsockname()[1]}"
    write_private(kubeconfig_path, kubeconfig(url, signer.pair.certificate, ADMIN, token_login(TOKEN)))
    servers = (
        (LocalApiServer(api_server.app, api_server.stop_watches, None), plain),
        (
            LocalApiServer(api_server.app, api_server.stop_watches, server_context(signer, (), environment.now())),
            secure,
        ),
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(api_server.run_controllers())
            running = [tasks.create_task(server.serve([listening])) for server, listening in servers]
            try:
                yield ApiServerHandle(f"http://127.0.0.1:{plain.getsockname()[1]}", TOKEN, kubeconfig_path, api_server)
            finally:
                for server, _ in servers:
                    server.end()
                await asyncio.wait(running)
    finally:
        api_server.close()

"""A real API server on a free loopback port, inside the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local.apiserver.app import Settings
from deploy.local.apiserver.server import ApiServer, admin_tokens, build, write_kubeconfig
from deploy.local.apiserver.serving import Server, listen
from deploy.local.apiserver.world import real_world

TOKEN = "the-admin-of-this-test"


@dataclass(frozen=True, slots=True)
class ApiServerHandle:
    """Where the server is, and how to be let in. ``server`` is for looking behind the HTTP face."""

    url: str
    token: str
    kubeconfig_path: Path
    server: ApiServer


@asynccontextmanager
async def running_api_server(tmp_path: Path) -> AsyncIterator[ApiServerHandle]:
    """Serves ``tmp_path/apiserver`` until the block ends; serving the same path again finds the same objects."""
    data_dir = tmp_path / "apiserver"
    listening: socket.socket = listen("127.0.0.1:0")
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    kubeconfig = data_dir / "kubeconfig"
    write_kubeconfig(kubeconfig, url, TOKEN)
    api_server = build(data_dir, admin_tokens(TOKEN), real_world(), Settings())
    serving = Server(api_server.app, api_server.stop_watches)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(serving.serve([listening]))
            try:
                yield ApiServerHandle(url, TOKEN, kubeconfig, api_server)
            finally:
                serving.stop()
                await task
    finally:
        api_server.close()

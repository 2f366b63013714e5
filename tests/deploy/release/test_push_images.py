"""The script that travels with a release: it pushes every image and nothing twice, with the standard library alone."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.release import push_images
from tests.deploy.release.test_release import image

SCRIPT = Path(push_images.__file__)


class Registry(BaseHTTPRequestHandler):
    """Keeps what is pushed, by its path and digest; wants the login ``me:secret``."""

    kept: dict[str, bytes]

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _is_known(self) -> bool:
        known = self.headers.get("Authorization") == "Basic bWU6c2VjcmV0"
        if not known:
            self._answer(401)
        return known

    def do_HEAD(self) -> None:
        if self._is_known():
            self._answer(200 if self.path.rpartition("/")[2] in self.kept else 404)

    def do_POST(self) -> None:
        if self._is_known():
            self._answer(202, Location=f"{self.path}1?state=x")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._is_known():
            return
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        is_blob = "digest=" in self.path
        name = digest if is_blob else self.path
        assert not is_blob or self.path.endswith(digest.replace(":", "%3A"))
        assert name not in self.kept, "nothing is pushed twice"
        self.kept[name] = content
        self._answer(201)

    def log_message(self, *_: object) -> None:
        """Tests say what they see themselves."""


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[str, bytes]]]:
    """The registry's address, and what it keeps."""
    handler = type("Kept", (Registry,), {"kept": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}", handler.kept  # type: ignore[attr-defined]  # made above
    server.shutdown()
    server.server_close()
    thread.join()


def run(*words: str, login: str = "me:secret") -> subprocess.CompletedProcess[str]:
    user, _, password = login.partition(":")
    environment = {"REGISTRY_USER": user, "REGISTRY_PASSWORD": password}
    command = [sys.executable, "-I", str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_every_image_is_pushed_once_and_named_by_its_digest(
    tmp_path: Path, registry: tuple[str, dict[str, bytes]]
) -> None:
    address, kept = registry
    for name in ("autoscaler-agent", "autoscale-scheduler"):
        image(tmp_path, name)
    (tmp_path / "layer").unlink()
    done = run(f"{address}/team", "v1", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    pushed = {path: f"sha256:{hashlib.sha256(content).hexdigest()}" for path, content in kept.items() if "/" in path}
    assert done.stdout.splitlines() == [
        f"{address}/team/{name}@{pushed[f'/v2/team/{name}/manifests/v1']}"
        for name in ("autoscale-scheduler", "autoscaler-agent")
    ]


def test_a_registry_that_refuses_is_said(tmp_path: Path, registry: tuple[str, dict[str, bytes]]) -> None:
    done = run(registry[0], "v1", str(image(tmp_path).parent), login="me:wrong")
    assert (done.returncode, done.stderr) == (1, "autoscaler-agent-amd64.tar: HTTP Error 401: Unauthorized\n")


def test_it_explains_itself() -> None:
    done = run("--help")
    assert done.returncode == 2
    assert "Usage: push_images.py HOST" in done.stderr

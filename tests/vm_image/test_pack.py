"""The guest image as a container image: what it holds, and how it travels to a registry."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from vm_image.host import BuildError
from vm_image.pack import Blob, busybox_of, layer_of, push


class Registry(ThreadingHTTPServer):
    """Keeps what is pushed to it by the registry protocol; refuses content that has another digest than it says."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Protocol)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Protocol(BaseHTTPRequestHandler):
    server: Registry

    def do_POST(self) -> None:
        self._say(202, f"{self.path}session?state=x" if self.path.endswith("/blobs/uploads/") else "")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = urlsplit(self.path)
        if "/manifests/" in url.path:
            self.server.manifests[url.path.rsplit("/", 1)[1]] = body
            return self._say(201, "")
        digest = parse_qs(url.query)["digest"][0]
        if digest != f"sha256:{hashlib.sha256(body).hexdigest()}":
            return self._say(400, "")
        self.server.blobs[digest] = body
        return self._say(201, "")

    def _say(self, status: int, location: str) -> None:
        self.send_response(status)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        pass


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def packed(work: Path) -> tuple[Blob, Blob]:
    disk = work / "disk.qcow2"
    disk.write_bytes(b"QFI\xfb")
    return layer_of(disk, b"\x7fELF", work)


def test_the_layer_has_the_disk_and_the_commands_that_neonvm_runs(tmp_path: Path) -> None:
    config, layer = packed(tmp_path)
    plain = gzip.decompress(layer.path.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        assert archive.getnames() == [
            "./bin/busybox",
            *(f"./bin/{name}" for name in ("sh", "mv", "chown", "sysctl", "cp", "ls")),
            "./disk.qcow2",
        ]
    assert json.loads(config.path.read_text())["rootfs"] == {
        "type": "layers",
        "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"],
    }


def test_an_image_travels_whole(tmp_path: Path, registry: Registry) -> None:
    config, layer = packed(tmp_path)
    assert push(registry.name, config, layer, lambda _: None) == f"{registry.name}/postgres-vm:dev"
    manifest = json.loads(registry.manifests["dev"])
    assert manifest["config"]["digest"] == config.digest
    assert [entry["digest"] for entry in manifest["layers"]] == [layer.digest]
    assert registry.blobs == {config.digest: config.path.read_bytes(), layer.digest: layer.path.read_bytes()}


def test_a_registry_that_refuses_is_quoted(tmp_path: Path, registry: Registry) -> None:
    config, layer = packed(tmp_path)
    layer.path.write_bytes(b"changed on the way")
    with pytest.raises(BuildError, match=r"the registry refused PUT .*: 400"):
        push(registry.name, config, layer, lambda _: None)


def test_where_no_registry_answers_the_error_says_how_to_start_one(tmp_path: Path, registry: Registry) -> None:
    config, layer = packed(tmp_path)
    with pytest.raises(BuildError, match=r"start it: vm_image/start-local-registry\.sh"):
        push("127.0.0.1:1", config, layer, lambda _: None)


def test_busybox_is_taken_from_the_base_layer(tmp_path: Path) -> None:
    base = tmp_path / "base.tar"
    with tarfile.open(base, "w") as archive:
        info = tarfile.TarInfo("./usr/bin/busybox")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"box"))
    assert busybox_of(base) == b"box"

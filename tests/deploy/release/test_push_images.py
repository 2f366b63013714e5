"""The script that travels with a release: it pushes every image and nothing twice, with the standard library alone."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.images.catalogue import IMAGES
from deploy.images.inputs.checkout import Checkout
from deploy.images.rules.platforms import PLATFORMS
from deploy.release import push_images
from deploy.release.assemble import assemble
from scripts.autoscale.main import app
from tests.deploy.release.test_release import image
from tests.loopback_http import served

SCRIPT = Path(push_images.__file__)


class Registry(BaseHTTPRequestHandler):
    """Keeps what is pushed, by its path and digest; wants the login ``me:secret``."""

    kept: dict[str, bytes]
    parts: dict[str, bytes]
    """Uploads that are not complete, by their path."""
    store = ""
    """The address of another server, which has blobs, and takes those that are new."""
    logins: list[str]
    """What it was shown."""

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _is_known(self) -> bool:
        self.logins.append(self.headers.get("Authorization", ""))
        known = self.logins[-1] == "Basic bWU6c2VjcmV0"
        if not known:
            self._answer(401, **{"WWW-Authenticate": 'Basic realm="r"'})
        return known

    def do_HEAD(self) -> None:
        if self._is_known():
            has = self.path.rpartition("/")[2] in self.kept
            stored = {"Location": f"{self.store}{self.path}"} if self.store else {}
            self._answer((307 if stored else 200) if has else 404, **stored)

    def do_GET(self) -> None:
        """Answer the client's first request: there is a registry, and this is its API version."""
        if self._is_known():
            self._answer(200 if self.path == "/v2/" else 404)

    def do_PATCH(self) -> None:
        """A blob as skopeo sends it, whose digest follows."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_known():
            self.parts[self.path.partition("?")[0]] = content
            self._answer(202, Location=self.path)

    def do_POST(self) -> None:
        if self._is_known():
            self._answer(202, Location=f"{self.store}{self.path}1?state=x")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        content += self.parts.pop(self.path.partition("?")[0], b"")
        if not self._is_known():
            return
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        is_blob = "digest=" in self.path
        name = digest if is_blob else self.path
        assert not is_blob or digest.replace(":", "%3A") in self.path
        assert name not in self.kept, "nothing is pushed twice"
        self.kept[name] = content
        self._answer(201)

    def log_message(self, *_: object) -> None:
        """Log nothing: tests print their own output."""


class Store(Registry):
    """A server elsewhere, which blobs are sent to: it takes them without a login."""

    def _is_known(self) -> bool:
        self.logins.append(self.headers.get("Authorization", ""))
        return True


@contextmanager
def serving(kind: type[Registry]) -> Iterator[tuple[str, type[Registry]]]:
    """The address of a server of this kind, and its class, which records requests."""
    handler = type("Serving", (kind,), {"kept": {}, "parts": {}, "logins": []})
    with served(handler) as address:
        yield address, handler


@pytest.fixture
def registry() -> Iterator[tuple[str, type[Registry]]]:
    with serving(Registry) as found:
        yield found


def run(*words: str, login: str = "me:secret") -> subprocess.CompletedProcess[str]:
    user, _, password = login.partition(":")
    environment = {"REGISTRY_USER": user, "REGISTRY_PASSWORD": password}
    command = [sys.executable, "-I", str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_each_image_is_pushed_once_by_digest(tmp_path: Path, registry: tuple[str, type[Registry]]) -> None:
    address, there = registry
    for name in ("autoscaler-agent", "autoscale-scheduler"):
        image(tmp_path, name)
    done = run(f"{address}/team", "v1", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{address}/team/{name}@{digest_of(there.kept[f'/v2/team/{name}/manifests/v1'])}"
        for name in ("autoscale-scheduler", "autoscaler-agent")
    ]


def test_multi_platform_image_has_one_digest(tmp_path: Path, registry: tuple[str, type[Registry]]) -> None:
    address, there = registry
    built = [image(tmp_path / "built", machine=machine) for machine in ("arm64", "amd64")]
    guest = image(tmp_path / "built", "postgres-vm")
    release = assemble(Checkout(), [*built, guest], tmp_path / "release")
    done = run(address, "v1", str(release.folder / "images"))
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads((release.folder / "release.json").read_text())["images"]
    assert done.stdout.splitlines() == [f"{address}/{name}@{digest}" for name, digest in said.items()]
    index = there.kept["/v2/autoscaler-agent/manifests/v1"]
    assert (said["autoscaler-agent"], said["postgres-vm"]) == (digest_of(index), release.images[2].digest)
    platforms = {each["digest"]: each["platform"]["architecture"] for each in json.loads(index)["manifests"]}
    assert platforms == {each.digest: each.architecture for each in release.images[:2]}
    assert {digest_of(there.kept[f"/v2/autoscaler-agent/manifests/{each}"]) for each in platforms} == platforms.keys()


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo")
def test_both_push_ways_are_equal(
    tmp_path: Path, registry: tuple[str, type[Registry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = ("autoscaler-agent", "postgres-vm")
    for name, where in ((name, where) for name in images for where in PLATFORMS.values()):
        if IMAGES[name].is_built_for(where.name):
            image(tmp_path / "images", name, where.debian)
    auths = {registry[0]: {"auth": base64.b64encode(b"me:secret").decode()}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    places = ("--output", str(tmp_path / "images"), *(f"--platform={each}" for each in PLATFORMS))
    named = CliRunner().invoke(app(["images"]), ["images", "push", registry[0], *images, "--tag=v1", *places])
    kept, registry[1].kept = registry[1].kept, {}
    alone = run(registry[0], "v1", str(tmp_path / "images"))
    assert (named.exit_code, alone.returncode) == (0, 0)
    assert registry[1].kept == kept
    assert named.stdout.replace(":v1@", "@") == alone.stdout


def test_login_goes_to_registry_only(tmp_path: Path, registry: tuple[str, type[Registry]]) -> None:
    address, there = registry
    image(tmp_path)
    with serving(Store) as (elsewhere, store):
        there.store = f"http://{elsewhere}"
        first = run(address, "v1", str(tmp_path))
        blobs, manifest = dict(store.kept), json.loads(there.kept["/v2/autoscaler-agent/manifests/v1"])
        there.kept = dict.fromkeys(blobs, b"")
        again = run(address, "v2", str(tmp_path))
    assert [(each.returncode, each.stderr) for each in (first, again)] == [(0, ""), (0, "")]
    assert blobs.keys() == {part["digest"] for part in (*manifest["layers"], manifest["config"])}
    assert (store.kept, set(store.logins)) == (blobs, {""}), "nothing is sent twice, and no password goes there"
    assert set(there.logins) == {"Basic bWU6c2VjcmV0"}


def test_non_http_address_is_refused(tmp_path: Path, registry: tuple[str, type[Registry]]) -> None:
    registry[1].store = "file://"
    image(tmp_path)
    done = run(registry[0], "v1", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("autoscaler-agent: the registry returned a URL that is not HTTP: file:///v2/")


def test_a_registry_that_refuses_is_said(tmp_path: Path, registry: tuple[str, type[Registry]]) -> None:
    done = run(registry[0], "v1", str(image(tmp_path).parent), login="me:wrong")
    assert (done.returncode, done.stderr) == (1, "autoscaler-agent: HTTP Error 401: Unauthorized\n")


@pytest.mark.parametrize(
    ("files", "message"),
    [({}, "no image archives in"), ({"x.tar": b"x"}, "x.tar: file could not be opened successfully")],
)
def test_a_folder_without_images_is_said(
    tmp_path: Path, registry: tuple[str, type[Registry]], files: dict[str, bytes], message: str
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    done = run(registry[0], "v1", str(folder))
    assert (done.returncode, message in done.stderr, registry[1].kept) == (1, True, {})


@pytest.mark.parametrize("words", [("--help",), ("-h",)])
def test_it_explains_itself(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: push_images.py HOST" in done.stdout


@pytest.mark.parametrize("words", [(), ("registry.test",), ("--tag", "v1"), ("a", "b", "c", "d")])
def test_it_says_how_it_is_asked(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: push_images.py HOST" in done.stderr


def test_it_needs_no_newer_python_than_it_says() -> None:
    assert "Python 3.8" in (push_images.__doc__ or "")
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))

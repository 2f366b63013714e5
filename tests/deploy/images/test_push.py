"""Pushing archives: what a registry is asked, in which order, and what it is told about who asks."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.images.building.layer_store import StoredLayer
from deploy.images.building.oci_archive import Contents, write_archive
from deploy.images.formats import oci
from deploy.images.push import PushError, PushTarget, push

TARGET = PushTarget("registry.test/team", "agent", "v1")
API = "/v2/team/agent/"


@dataclass
class Registry:
    """Keeps what is pushed to it, by the distribution API. With ``password`` it wants a token first, as its reference
    implementation does: one with the rights that the request needs. The ``ended``-th upload ends all tokens.
    """

    password: str = ""
    ended: int = 0
    tokens: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    uploads_at: str = ""
    stored_at: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "token.test":
            return self._token(request)
        if request.url.host == "uploads.test":
            self.strangers.append(request.headers.get("Authorization", ""))
            greedy = httpx.Response(
                401, headers={"WWW-Authenticate": 'Bearer realm="https://token.test/t",service="r"'}
            )
            return greedy if request.method == "HEAD" else self._store(request)
        needs = "pull" if request.method == "HEAD" else "pull,push"
        if self.password and not self._lets_in(request, needs):
            challenge = f'Bearer realm="https://token.test/t",service="r",scope="repository:team/agent:{needs}"'
            return httpx.Response(401, headers={"WWW-Authenticate": challenge})
        self.asked.append(f"{request.method} {request.url.path.removeprefix(API)[:13]}")
        return self._answer(request)

    def _lets_in(self, request: httpx.Request, needs: str) -> bool:
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.method == "PUT" and "uploads" in request.url.path:
            self.ended -= 1
            self.tokens = self.tokens if self.ended else []
        return shown in self.tokens and f"repository:team/agent:{needs}" in shown.split()

    def _token(self, request: httpx.Request) -> httpx.Response:
        pair = base64.b64encode(f"me:{self.password}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {pair}":
            return httpx.Response(401, text="wrong password")
        assert request.url.params["service"] == "r"
        self.tokens.append(f"{self.ended} {request.url.params['scope']}")
        return httpx.Response(200, json={"token": self.tokens[-1]})

    def _answer(self, request: httpx.Request) -> httpx.Response:
        kind, _, name = request.url.path.removeprefix(API).partition("/")
        match request.method, kind:
            case "HEAD", "blobs":
                moved = {"Location": f"{self.stored_at}{request.url.path}"} if self.stored_at else {}
                return httpx.Response((307 if moved else 200) if name in self.blobs else 404, headers=moved)
            case "POST", "blobs":
                return httpx.Response(202, headers={"Location": f"{self.uploads_at}{API}uploads/1?state=x"})
            case "PUT", "uploads":
                return self._store(request)
            case "PUT", "manifests":
                self.manifests[name] = request.read()
                return httpx.Response(201)
        return httpx.Response(405)

    def _store(self, request: httpx.Request) -> httpx.Response:
        content, digest = request.read(), request.url.params["digest"]
        assert request.url.params["state"] == "x"
        if digest != f"sha256:{hashlib.sha256(content).hexdigest()}":
            return httpx.Response(400, text="DIGEST_INVALID")
        self.blobs[digest] = content
        return httpx.Response(201)


def archive(folder: Path, machine: str = "amd64", packed: bytes = b"packed") -> Path:
    layer = oci.LayerFacts(oci.Descriptor.of(oci.LAYER, packed), oci.digest_of(b"plain"))
    file = folder / f"{machine}.tar.gz"
    file.write_bytes(packed)
    config = oci.config(oci.RunFacts(machine), [layer])
    manifest = oci.manifest(oci.Descriptor.of(oci.CONFIG, config), [layer], {})
    path = folder / f"{machine}.tar"
    write_archive(path, Contents(machine, config, manifest, (StoredLayer(layer, file),)), "x:v1")
    return path


def pushed(archives: dict[str, Path], registry: Registry) -> str:
    return push(archives, TARGET, lambda _: None, httpx.MockTransport(registry))


@pytest.fixture(autouse=True)
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's folder of settings, without a login."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


def test_pushed_image_keeps_archive_digest(tmp_path: Path) -> None:
    registry = Registry()
    digest = pushed({"amd64": archive(tmp_path)}, registry)
    assert digest == oci.digest_of(registry.manifests["v1"])
    manifest = json.loads(registry.manifests["v1"])
    assert [part["digest"] for part in (*manifest["layers"], manifest["config"])] == list(registry.blobs)
    assert b"packed" in registry.blobs.values()


def test_what_the_registry_has_is_not_sent_again(tmp_path: Path) -> None:
    registry = Registry()
    pushed({"amd64": archive(tmp_path)}, registry)
    registry.asked.clear()
    pushed({"amd64": archive(tmp_path)}, registry)
    assert registry.asked == ["HEAD blobs/sha256:", "HEAD blobs/sha256:", "PUT manifests/v1"]


def test_several_platforms_become_one_name(tmp_path: Path) -> None:
    registry = Registry()
    digest = pushed({name: archive(tmp_path, name) for name in ("arm64", "amd64")}, registry)
    index = json.loads(registry.manifests["v1"])
    assert digest == oci.digest_of(registry.manifests["v1"])
    assert [each["platform"]["architecture"] for each in index["manifests"]] == ["amd64", "arm64"]
    assert {each["digest"] for each in index["manifests"]} == registry.manifests.keys() - {"v1"}


@pytest.fixture
def login(logins: Path) -> Registry:
    """A registry that wants a token, and docker's login for it."""
    pair = base64.b64encode(b"me:secret").decode()
    (logins / "config.json").write_text(json.dumps({"auths": {"registry.test": {"auth": pair}}}))
    return Registry(password="secret")


def test_one_token_is_fetched_with_docker_login(tmp_path: Path, login: Registry) -> None:
    pushed({"amd64": archive(tmp_path)}, login)
    assert login.manifests.keys() == {"v1"}
    assert login.tokens == ["0 repository:team/agent:pull repository:team/agent:pull,push"]


def test_expired_token_repeats_the_blob(tmp_path: Path, login: Registry) -> None:
    login.ended = 2
    pushed({"amd64": archive(tmp_path)}, login)
    assert login.manifests.keys() == {"v1"}
    assert len(login.blobs) == 2
    assert login.asked.count("POST blobs/uploads") == 3
    assert login.tokens == ["0 repository:team/agent:pull,push"]


def test_upload_host_gets_no_token(tmp_path: Path, login: Registry) -> None:
    login.uploads_at = "https://uploads.test"
    pushed({"amd64": archive(tmp_path)}, login)
    assert login.strangers == ["", ""]
    assert len(login.blobs) == 2


def test_blob_host_is_not_queried(tmp_path: Path, login: Registry) -> None:
    login.stored_at = "https://uploads.test"
    for _ in range(2):
        pushed({"amd64": archive(tmp_path)}, login)
    assert (login.strangers, len(login.tokens)) == ([], 2), "a token for each push"
    assert login.asked.count("POST blobs/uploads") == 2


def test_a_refused_login_is_said(tmp_path: Path) -> None:
    with pytest.raises(PushError, match="token service refused: 401 wrong password"):
        pushed({"amd64": archive(tmp_path)}, Registry(password="secret"))


def test_a_registry_that_refuses_is_quoted(tmp_path: Path) -> None:
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"packed", b"broken"))
    with pytest.raises(PushError, match=r"the registry refused PUT .*: 400 DIGEST_INVALID"):
        pushed({"amd64": path}, Registry())


def test_unreachable_registry_error_says_how_to_start(tmp_path: Path) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(PushError, match=r"vm_image/start-local-registry\.sh"):
        push({"amd64": archive(tmp_path)}, TARGET, lambda _: None, httpx.MockTransport(refuse))


@pytest.mark.parametrize(
    ("target", "base"),
    [
        (PushTarget("localhost:5001", "agent", "dev"), "http://localhost:5001/v2/agent/"),
        (PushTarget("127.0.0.1:5001/a/b", "agent", "dev"), "http://127.0.0.1:5001/v2/a/b/agent/"),
        (TARGET, "https://registry.test/v2/team/agent/"),
        (PushTarget("registry.test", "agent", "v1", plain_http=True), "http://registry.test/v2/agent/"),
    ],
)
def test_plain_http_is_for_loopback_only(target: PushTarget, base: str) -> None:
    assert target.base == base


def test_an_image_is_named_as_pods_name_it() -> None:
    assert TARGET.reference == "registry.test/team/agent:v1"

"""Pushes image archives to a registry by the OCI distribution API: blobs that it lacks, then the manifests."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import httpx2 as httpx

from deploy.images.building.oci_archive import blob_path
from deploy.images.formats import oci
from deploy.images.formats.registry_login import Challenge, RegistryLogin, login_for, read_challenge, token_of
from deploy.images.proxied import ProxiedTransport
from protocol.kubernetes.proxies import ProxyError
from vm_image.recipe import HERE
from vm_image.store import Report

_LOOPBACK: Final = ("localhost", "127.", "[::1]")
# Blobs of several hundred MB take a registry a while to store and to hash.
_TIMEOUT: Final = httpx.Timeout(30, write=300, read=300)
_ABSENT: Final = 404
_STORED_ELSEWHERE: Final = (301, 302, 303, 307, 308)
"""How a registry says that another server has a blob."""


class PushError(Exception):
    """The registry does not take the image; the message says which request and what it answered."""


class _SendAgainError(Exception):
    """The token expired while a stream was sent, which is used up. A new token is in place."""


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Destination of an image: ``registry`` (``HOST[:PORT]``, with a path if the registry needs one), name and tag."""

    registry: str
    name: str
    tag: str
    plain_http: bool = False

    @property
    def host(self) -> str:
        """The registry without its path."""
        return self.registry.partition("/")[0]

    @property
    def reference(self) -> str:
        """The image's name in a pod."""
        return f"{self.registry}/{self.name}:{self.tag}"

    @property
    def repository(self) -> str:
        """The image within the registry."""
        path = self.registry.partition("/")[2]
        return f"{path}/{self.name}" if path else self.name

    @property
    def base(self) -> str:
        """The address of the API for this image. Loopback registries speak plain HTTP."""
        scheme = "http" if self.plain_http or self.host.startswith(_LOOPBACK) else "https"
        return f"{scheme}://{self.host}/v2/{self.repository}/"


class _Auth(httpx.Auth):
    """Answers the registry's challenges, once for each request, and sends the last answer with all later requests.

    No other host gets a login or a token.
    """

    requires_response_body = True

    def __init__(self, login: RegistryLogin, target: PushTarget) -> None:
        self._login = login
        self._registry = httpx.URL(target.base)
        self._scope = f"repository:{target.repository}:pull,push"
        self._header = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if request.url.netloc != self._registry.netloc or request.url.scheme != self._registry.scheme:
            # A redirect to blob storage must not get the login.
            yield request
            return
        if self._header:
            request.headers["Authorization"] = self._header
        # The refused request uses up the stream of a file; the caller has to open it again.
        is_streamed = not isinstance(request.stream, httpx.ByteStream)
        answer = yield request
        if answer.status_code != httpx.codes.UNAUTHORIZED:
            return  # answered, or refused for another reason than the login
        challenge = read_challenge(answer.headers.get("WWW-Authenticate", ""))
        header = self._login.header
        if challenge.scheme != "basic":
            # A registry names the rights that the refused request needs, and the first request only reads. So the
            # token is requested with the right to write as well.
            header = f"Bearer {token_of((yield from self._granted(challenge)))}"
        # The same header again would be refused again.
        if not header or header == self._header:
            raise PushError(f"the registry refused {request.method} {request.url}: 401 {answer.text[:300]}")
        self._header = request.headers["Authorization"] = header
        if is_streamed:
            raise _SendAgainError
        yield request

    def _granted(self, challenge: Challenge) -> Generator[httpx.Request, httpx.Response, str]:
        headers = {"Authorization": self._login.header} if self._login.header else {}
        response = yield httpx.Request("GET", challenge.with_scope(self._scope).token_url, headers=headers)
        if response.is_error:
            raise PushError(f"the token service refused: {response.status_code} {response.text[:300]}")
        return response.text


def push(
    archives: Mapping[str, Path], target: PushTarget, report: Report, transport: httpx.BaseTransport | None = None
) -> str:
    """Pushes the archives of one image by architecture; returns the digest that ``target`` then has.

    One archive becomes an image, several become an index over images. Raises ``PushError`` and ``LoginError``.
    """
    auth = _Auth(login_for(target.host, _docker_config()), target)
    transport = transport or ProxiedTransport(os.environ)
    with _proxies_named(), httpx.Client(auth=auth, timeout=_TIMEOUT, transport=transport) as client:
        pushed = {}
        for architecture, path in sorted(archives.items()):
            with tarfile.open(path) as archive:
                report(f"pushing {target.name} for {architecture} to {target.registry}")
                # With several platforms, only the index gets the tag; each manifest is pushed by its digest.
                tag = target.tag if len(archives) == 1 else ""
                pushed[architecture] = _push_one(client, archive, target, tag)
        # Pushed last: a registry refuses an index whose manifests it lacks.
        if len(pushed) > 1:
            _put_manifest(client, target, target.tag, oci.INDEX, oci.index(pushed))
        return oci.digest_under_tag(pushed)


@contextmanager
def _proxies_named() -> Iterator[None]:
    try:
        yield
    except ProxyError as error:
        raise PushError(str(error)) from None


def _push_one(client: httpx.Client, archive: tarfile.TarFile, target: PushTarget, tag: str) -> oci.Descriptor:
    index = json.loads(_content(archive, "index.json").read())
    (entry,) = index["manifests"]
    descriptor = _descriptor(entry)
    document = _content(archive, blob_path(descriptor.digest)).read()
    manifest = json.loads(document)
    # A registry refuses a manifest whose blobs it lacks.
    for part in (*manifest["layers"], manifest["config"]):
        _push_blob(client, target, _descriptor(part), lambda digest: _content(archive, blob_path(digest)))
    _put_manifest(client, target, tag or descriptor.digest, oci.MANIFEST, document)
    return descriptor


def _push_blob(
    client: httpx.Client, target: PushTarget, blob: oci.Descriptor, content: Callable[[str], IO[bytes]]
) -> None:
    response = _send(client, "HEAD", f"{target.base}blobs/{blob.digest}", allowed=(*_STORED_ELSEWHERE, _ABSENT))
    if response.status_code != _ABSENT:
        return
    try:
        _upload(client, target, blob, content(blob.digest))
    # The new token is in place now, so one more attempt is enough.
    except _SendAgainError:
        _upload(client, target, blob, content(blob.digest))


def _upload(client: httpx.Client, target: PushTarget, blob: oci.Descriptor, content: IO[bytes]) -> None:
    started = _send(client, "POST", f"{target.base}blobs/uploads/")
    # The location may be relative, and may have a query of its own.
    place = started.url.join(started.headers["Location"]).copy_merge_params({"digest": blob.digest})
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
    _send(client, "PUT", str(place), content=content, headers=headers)


def _put_manifest(client: httpx.Client, target: PushTarget, reference: str, media_type: str, document: bytes) -> None:
    url = f"{target.base}manifests/{reference}"
    answer = _send(client, "PUT", url, content=document, headers={"Content-Type": media_type})
    # The header is optional in the specification.
    stored = answer.headers.get("Docker-Content-Digest", oci.digest_of(document))
    if stored != oci.digest_of(document):
        raise PushError(f"the registry stored {stored} instead of {oci.digest_of(document)}")


def _send(client: httpx.Client, method: str, url: str, allowed: Sequence[int] = (), **rest: Any) -> httpx.Response:
    try:
        answer = client.request(method, url, **rest)
    except httpx.HTTPError as error:
        raise PushError(
            f"no registry answers at {url}: {error!r}; a local one: {HERE / 'start-local-registry.sh'}"
        ) from error
    if not answer.is_success and answer.status_code not in allowed:
        raise PushError(f"the registry refused {method} {url}: {answer.status_code} {answer.text[:300]}")
    return answer


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    content = archive.extractfile(name)
    if content is None:
        raise PushError(f"this is no image archive: it has no {name}")
    return content


def _descriptor(document: Mapping[str, Any]) -> oci.Descriptor:
    return oci.Descriptor(document["mediaType"], document["digest"], document["size"])


def _docker_config() -> str:
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        return (folder / "config.json").read_text()
    except FileNotFoundError:
        return ""

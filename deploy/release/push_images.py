#!/usr/bin/env python3
"""Pushes the images of an air-gapped release to a registry. Part of the release; requires only Python 3.8 or newer.

Usage: push_images.py HOST[:PORT][/PATH] TAG [FOLDER]    (REGISTRY_USER and REGISTRY_PASSWORD for a login)
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

INDEX = "application/vnd.oci.image.index.v1+json"


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: urllib would forward the login, and turn HEAD into GET."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that the redirect is raised as an ``HTTPError``."""


class Registry:
    """A registry, and a path in it. Uses plain HTTP on loopback, or if REGISTRY_PLAIN_HTTP=1."""

    def __init__(self, address: str) -> None:
        host, _, path = address.partition("/")
        plain = host.startswith(("localhost", "127.", "[::1]")) or os.environ.get("REGISTRY_PLAIN_HTTP") == "1"
        self._base = f"{'http' if plain else 'https'}://{host}/v2/{path + '/' if path else ''}"
        login = f"{os.environ.get('REGISTRY_USER', '')}:{os.environ.get('REGISTRY_PASSWORD', '')}"
        self._login = "" if login == ":" else f"Basic {base64.b64encode(login.encode()).decode()}"
        self._opener = urllib.request.build_opener(NoRedirects)

    def call(self, method: str, url: str, body: Any = None, **headers: str) -> Any:
        """Send a request; return the response. Raises ``HTTPError``, and ``ValueError`` if the URL is not HTTP."""
        target = urllib.parse.urljoin(self._base, url)
        if not target.startswith(("http://", "https://")):
            raise ValueError(f"the registry returned a URL that is not HTTP: {target}")
        # Python's keyword arguments cannot contain hyphens.
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        # The URL may come from the registry: do not send the login to another server.
        if self._login and _server(target) == _server(self._base):
            headers["Authorization"] = self._login
        request = urllib.request.Request(target, data=body, headers=headers, method=method)  # noqa: S310 - checked above
        return self._opener.open(request, timeout=300)

    def has(self, url: str) -> bool:
        """Return True if the registry has the blob, or redirects to it. Raises ``HTTPError``."""
        try:
            self.call("HEAD", url).close()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            # A redirect: another server stores the blob.
            if error.code // 100 != 3:
                raise
        return True


def _server(url: str) -> tuple[str, str | None, int]:
    parts = urllib.parse.urlsplit(url)
    # With or without the default port, it is the same server.
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


class PushedImage:
    """An archive: one image for one platform. Raises ``OSError``, ``TarError``, ``KeyError`` and ``ValueError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tarfile.open(path) as archive:
            (self.entry,) = json.load(_content(archive, "index.json"))["manifests"]
            self.document = _content(archive, _blob(self.entry["digest"])).read()
        self.manifest = json.loads(self.document)
        self.name: str = self.manifest["annotations"]["org.opencontainers.image.title"]

    def push(self, registry: Registry, reference: str) -> None:
        """Push the image with ``reference``, a tag or its digest."""
        with tarfile.open(self.path) as archive:
            # Registries reject a manifest without its blobs.
            for part in (*self.manifest["layers"], self.manifest["config"]):
                if registry.has(f"{self.name}/blobs/{part['digest']}"):
                    continue
                location = registry.call("POST", f"{self.name}/blobs/uploads/", b"").headers["Location"]
                # The location may have a query already.
                url = f"{location}{'&' if '?' in location else '?'}digest={urllib.parse.quote(part['digest'])}"
                size, kind = str(part["size"]), "application/octet-stream"
                content = _content(archive, _blob(part["digest"]))
                registry.call("PUT", url, content, Content_Type=kind, Content_Length=size)
        url = f"{self.name}/manifests/{reference}"
        registry.call("PUT", url, self.document, Content_Type=self.entry["mediaType"])


def push(registry: Registry, images: list[PushedImage], tag: str) -> str:
    """Push one image for all its platforms; return ``NAME@DIGEST``. For several platforms, the tag is an index."""
    name, entries = images[0].name, [image.entry for image in images]
    if len(images) == 1:
        images[0].push(registry, tag)
        return f"{name}@{entries[0]['digest']}"
    # Registries reject an index without its manifests.
    for image in images:
        image.push(registry, image.entry["digest"])
    document = index(entries)
    registry.call("PUT", f"{name}/manifests/{tag}", document, Content_Type=INDEX)
    return f"{name}@sha256:{hashlib.sha256(document).hexdigest()}"


def index(entries: list[dict[str, Any]]) -> bytes:
    """The index of an image's manifests; its digest must equal the one in the release's chart."""
    # Without the annotations in the archive.
    parts = [{name: entry[name] for name in ("mediaType", "digest", "size", "platform")} for entry in entries]
    parts.sort(key=lambda part: part["platform"]["architecture"])
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": parts}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _content(image: tarfile.TarFile, name: str) -> IO[bytes]:
    content = image.extractfile(name)
    if content is None:
        raise KeyError(name)
    return content


@contextmanager
def exit_on_error(about: str) -> Iterator[None]:
    """Exit with the error, preceded by ``about``, if the block fails."""
    try:
        yield
    except (OSError, tarfile.TarError, KeyError, ValueError) as error:
        sys.exit(f"{about}: {error}")


def main(arguments: list[str]) -> int:
    """Push every archive in the folder. Returns 0, or 2 for wrong arguments; exits with 1 if a push fails."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if len(arguments) not in (2, 3) or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[2]) if len(arguments) == 3 else Path(__file__).resolve().parent / "images"
    registry = Registry(arguments[0])
    by_name: dict[str, list[PushedImage]] = {}
    for archive in sorted(folder.glob("*.tar")):
        with exit_on_error(archive.name):
            image = PushedImage(archive)
            by_name.setdefault(image.name, []).append(image)
    for name, images in by_name.items():
        with exit_on_error(name):
            print(f"{arguments[0]}/{push(registry, images, arguments[1])}", flush=True)
    if not by_name:
        sys.exit(f"no image archives in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The packaged chart of a release, with its version and the location of its images (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from deploy.images.formats.tree import File, compressed, tar_of, tree

# Only an empty digest matches: images that the chart pins keep their digests.
_IMAGE = re.compile(r'image: \{(?P<before>[^}\n]*)repository: (?P<name>[\w-]+)(?P<between>[^}\n]*)digest: ""\}')


def chart_archive(files: Mapping[str, bytes], version: str, registry: str, digests: Mapping[str, str]) -> bytes:
    """The chart's ``files`` (by path in the chart) as from ``helm package``, but reproducible.

    ``registry`` and ``digests`` (by image name) are of the release's images; an empty registry: the chart's.
    """
    changed = dict(files)
    changed["Chart.yaml"] = with_version(files["Chart.yaml"].decode(), version).encode()
    values = with_digests(files["values.yaml"].decode(), digests)
    changed["values.yaml"] = with_registry(values, registry).encode()
    return compressed(tar_of(tree(File(f"autoscale/{path}", content) for path, content in changed.items())))


def with_version(chart: str, version: str) -> str:
    """``Chart.yaml`` of a release. The images' tag is informational; nodes pull by digest.

    >>> with_version("name: autoscale\\nversion: 0.0.0\\nappVersion: dev # the tag\\n", "1.2.3")
    'name: autoscale\\nversion: 1.2.3\\nappVersion: v1.2.3\\n'
    """
    # Edited as text: parsing and writing YAML would drop the comments.
    chart = re.sub(r"^version: .*$", f"version: {version}", chart, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f"appVersion: v{version}", chart, flags=re.MULTILINE)


def with_digests(values: str, digests: Mapping[str, str]) -> str:
    """``values.yaml`` with the known digests of images.

    >>> with_digests('  image: {repository: a, tag: "", digest: ""}', {"a": "sha256:1"})
    '  image: {repository: a, tag: "", digest: "sha256:1"}'
    """

    def with_digest(match: re.Match[str]) -> str:
        return match[0].replace('digest: ""', f'digest: "{digests.get(match["name"], "")}"')

    return _IMAGE.sub(with_digest, values)


def with_registry(values: str, registry: str) -> str:
    """``values.yaml`` with ``registry`` for the images; unchanged if it is empty.

    >>> with_registry("image:\\n  registry: localhost:5001\\n", "ghcr.io/team")
    'image:\\n  registry: ghcr.io/team\\n'
    """
    if not registry:
        return values
    # Anchored at the top-level ``image``: other parts of the chart may have their own registry.
    return re.sub(r"(?<=^image:\n  registry: ).*$", registry, values, count=1, flags=re.MULTILINE)

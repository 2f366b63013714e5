"""The manifests that this release ships, as far as checks need them: who may do what, and which pods there will be."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import yaml

from protocol.kubernetes.objects import Json

_DEPLOY: Final = Path(__file__).parents[4] / "deploy"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's if there is one: ten times as fast."""


@cache
def shipped() -> tuple[Json, ...]:
    """Every object of them, with the rights that a second scheduler adds. The files are the project's own, so an
    ordinary YAML loader reads them.
    """
    folder = _DEPLOY / "kubernetes"
    leader = folder / "with-certificates" / "scheduler-leader.yaml"
    files = (_DEPLOY / "scheduler-deploy.yaml", *sorted(folder.glob("*.yaml")), leader)
    documents = (document for path in files for document in yaml.load_all(path.read_text(), Loader=_LOADER))
    # An empty document (a trailing `---`) is None.
    return tuple(document for document in documents if isinstance(document, dict))

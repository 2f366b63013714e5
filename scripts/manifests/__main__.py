"""``python -m scripts.manifests``: renders the plain manifests, their lock and the table of values from the chart.

The first run builds Helm from its Go module.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.local.kubernetes.programs.build import Builder, BuildFailedError
from deploy.local.kubernetes.programs.toolchain import NoGoError, find_go
from deploy.local.kubernetes.programs.versions import HELM
from scripts.manifests import rendering
from scripts.manifests.values_table import with_table

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = "deploy/kubernetes/rendered.sha256"
TABLE: Final = "docs/install.md"


def main() -> int:
    """Write changed files; return the exit code."""
    try:
        files = rendered(helm())
    except (BuildFailedError, NoGoError, subprocess.CalledProcessError, ValueError, OSError) as error:
        print(f"manifests: {error}", file=sys.stderr)
        return 1
    write({**files, LOCK: rendering.lock(chart_files(), files), TABLE: document()})
    return 0


def write(files: Mapping[str, str]) -> None:
    """Write and print the ``files`` that have changed."""
    for file, content in files.items():
        path = ROOT / file
        if not path.is_file() or path.read_text() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            print(f"wrote {file}")


def helm() -> Path:
    """The path of Helm; builds it if necessary. Raises ``BuildFailedError`` or ``NoGoError``."""
    return Builder.default(find_go()).ensure(HELM, lambda line: print(line, file=sys.stderr)) / "helm"


def rendered(program: Path) -> dict[str, str]:
    """Render the plain manifests. Raises ``ValueError`` or ``subprocess.CalledProcessError``."""
    templates = {path.removeprefix("templates/"): content.decode() for path, content in chart_files().items()}
    contents: dict[str, str] = {}
    for values in (rendering.VALUES, rendering.INJECTING, rendering.WITH_CERTIFICATES, rendering.WITH_PODS):
        files = rendering.plain_files(template(program, values), templates)
        # Keep only the files that are rendered with these values.
        contents |= {file: text for file, text in files.items() if rendering.values_of(file) is values}
    return {file: contents[file] for file in rendering.PLAIN}


def template(program: Path, values: Mapping[str, Any]) -> str:
    """Output of ``helm template`` for the chart with ``values``. Raises ``subprocess.CalledProcessError``."""
    command = (str(program), "template", "autoscaling", str(ROOT / rendering.CHART))
    options = (f"--namespace={rendering.NAMESPACE}", f"--kube-version={rendering.KUBERNETES}", "--values=-")
    done = subprocess.run([*command, *options], input=json.dumps(values), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def chart_files() -> Mapping[str, bytes]:
    """All files of the chart, by path."""
    folder = ROOT / rendering.CHART
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def document() -> str:
    """The document ``TABLE`` with an updated table of values. Raises ``ValueError``."""
    schema = json.loads((ROOT / rendering.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((ROOT / rendering.CHART / "values.yaml").read_text())
    return with_table((ROOT / TABLE).read_text(), schema, values)


if __name__ == "__main__":
    sys.exit(main())

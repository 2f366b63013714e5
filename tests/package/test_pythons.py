"""The versions of Python that are promised are those that `make test-pythons` plays."""

from __future__ import annotations

import re
import tomllib

from tests.package.import_graph import ROOT


def test_oldest_and_newest_python_are_played() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [each.rpartition(" ")[2] for each in project["classifiers"]]
    played = re.search(r"set -- (\S+) (\S+)\n", (ROOT / "scripts/test-pythons.sh").read_text())
    assert played is not None
    assert played.groups() == (promised[0], promised[-1])
    assert project["requires-python"] == f">={promised[0]}"

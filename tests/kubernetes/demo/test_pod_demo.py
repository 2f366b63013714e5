"""The demonstration with a database in an ordinary pod, from an empty machine to its report (B.7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kubernetes
COMMAND = (sys.executable, "-m", "scripts.autoscale.main", "demo", "--kubernetes", "--pods", "--no-web")


def test_pod_demo_grows_shrinks_and_waits(home: Path, tmp_path: Path) -> None:
    assert home.is_dir(), "there can be clusters on this machine"
    file = tmp_path / "run.json"
    done = subprocess.run(
        [*COMMAND, f"--report={file}"],
        env={**os.environ, "AUTOSCALE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(file.read_text())
    assert (report["success"], report["database"], report["failed"]) == (True, "pod", 0)
    assert report["started_at"] < report["grew_to"] > report["shrank_to"]
    assert report["room"]["reason"]
    print(done.stdout[done.stdout.index("The pod scaled with its load.") :])

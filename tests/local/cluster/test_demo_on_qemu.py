"""The main job on a real guest: a VM boots, grows under pgbench, and shrinks, and no transaction fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LONGEST = 1500
"""Seconds; each step has a limit of its own, and an idle machine needs less than three minutes."""


@pytest.mark.vm
def test_real_vm_follows_pgbench(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    command = [sys.executable, "-m", "scripts.autoscale.main", "demo", "--report", str(file)]
    environment = {**os.environ, "AUTOSCALE_HOME": str(tmp_path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    report = json.loads(file.read_text())
    assert report["grew_to"] > report["started_at"]
    assert report["shrank_to"] < report["grew_to"]
    assert (report["failed"], report["transactions"] > 0) == (0, True)


@pytest.mark.vm
def test_real_vm_sleeps_and_wakes(tmp_path: Path) -> None:
    """An open session and a new one wake it; while it slept, its node had its resources back."""
    file = tmp_path / "report.json"
    command = [sys.executable, "-m", "scripts.autoscale.main", "demo", "--sleep", "--report", str(file)]
    environment = {**os.environ, "AUTOSCALE_HOME": str(tmp_path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    sleeps = json.loads(file.read_text())["sleeps"]
    assert [(point["qemu_ended"], point["state"], point["table"]) for point in sleeps] == [(True, "Awake", "42")] * 2

"""The script that starts the local registry says at once what keeps it from starting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "vm_image" / "start-local-registry.sh"
_TAKEN = """
import socket, subprocess, sys, threading
with socket.create_server(("0.0.0.0", 5001)) as taken:
    threading.Thread(target=lambda: [taken.accept()[0].close() for _ in range(9)], daemon=True).start()
    run = subprocess.run(["bash", sys.argv[1]], capture_output=True, text=True)
print(run.returncode, run.stderr)
"""


@pytest.mark.skipif(shutil.which("ss") is None, reason="the script asks ss for the program")
def test_occupied_port_names_its_program(tmp_path: Path) -> None:
    own_network = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--", "sh", "-c"]
    command = [*own_network, 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c", _TAKEN, str(SCRIPT)]
    if subprocess.run([*own_network, "ip link set lo up"], check=False, capture_output=True).returncode:
        pytest.skip("this user cannot make a network namespace")
    environment = {**os.environ, "AUTOSCALE_CACHE": str(tmp_path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("1 127.0.0.1:5001 is taken by python")

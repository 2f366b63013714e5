#!/bin/sh
# Builds the guest image (see vm_image/build.py). Requires only Python 3.11 or newer.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=$here/.venv/bin/python
[ -x "$python" ] || python=python3
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m vm_image "$@"

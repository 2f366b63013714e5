#!/bin/sh
# Builds the guest image (see vm_image/build.py). Needs Python 3.11 or newer and nothing from outside its library.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=$here/.venv/bin/python
[ -x "$python" ] || python=python3
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m vm_image "$@"

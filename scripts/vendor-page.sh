#!/usr/bin/env bash
# Vendors the page's chart library (uPlot) and the tests' accessibility checker (axe).
set -euo pipefail

usage() {
  cat <<'EOF'
Usage: scripts/vendor-page.sh

Downloads both libraries with npm, verifies their checksums (scripts/vendored.sha256) and copies them into the tree. Run
it after changing a version in this script and the checksums.
EOF
}

case "${1:-}" in
  "") ;;
  -h | --help) usage; exit 0 ;;
  *) echo "vendor-page.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# vendor PACKAGE FOLDER FILE=NAME...: copy files of a package into a folder of the new tree.
vendor() {
  # --ignore-scripts: run nothing before the checksums are verified.
  tar -xzf "$folder/$(cd "$folder" && npm pack --silent --ignore-scripts "$1")" -C "$folder"
  for file in "${@:3}"; do
    install -D -m 644 "$folder/package/${file%=*}" "$folder/tree/$2/${file#*=}"
  done
  rm -r "$folder/package"
}

vendor uplot@1.6.32 scheduler_plugin/dashboard/static/vendor dist/uPlot.iife.min.js=uPlot.iife.min.js \
  dist/uPlot.min.css=uPlot.min.css LICENSE=uPlot.LICENSE.txt
vendor axe-core@4.14.1 tests/browser/vendor axe.min.js=axe.min.js LICENSE=axe.LICENSE.txt
sums=$PWD/scripts/vendored.sha256
# Verify all checksums before replacing anything.
(cd "$folder/tree" && sha256sum --check --strict --quiet "$sums")
cp -r "$folder/tree/." .

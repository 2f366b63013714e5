#!/usr/bin/env bash
# Vendors the page's chart library, and the library that checks its accessibility in tests.
set -euo pipefail

usage() {
  cat <<'EOF'
Usage: scripts/vendor-page.sh

Fetches both libraries from the npm registry, which needs npm, compares them with scripts/vendored.sha256 and puts them
into the tree. Run it after changing a version in this script and the checksums; nothing else needs it.
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

# vendor PACKAGE FOLDER FILE=NAME...: puts files of a package into a folder of the tree to be.
vendor() {
  # No script of a package runs before its files are compared.
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
# Nothing is replaced until every file has its checksum: a half-updated library would be worse than an old one.
(cd "$folder/tree" && sha256sum --check --strict --quiet "$sums")
cp -r "$folder/tree/." .

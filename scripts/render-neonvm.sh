#!/usr/bin/env bash
# Combines NeonVM's CRDs in deploy/kubernetes/crds into deploy/neonvm.yaml.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<EOF
Usage: scripts/render-neonvm.sh [--check]

Writes deploy/neonvm.yaml from deploy/kubernetes/crds/virtualmachine{s,migrations}.yaml. Edit those, then run this (or: make manifests).
  --check  write nothing; exit with 1 if the file is out of date
EOF
}

rendered() {
  local file
  echo "# The resources of NeonVM. Written by scripts/render-neonvm.sh from deploy/kubernetes/crds; edit those, not this."
  for file in deploy/kubernetes/crds/virtualmachine{migrations,s}.yaml; do
    echo "---"
    cat "$file"
  done
}

case "${1:-}" in
  -h | --help) usage ;;
  --check)
    rendered | cmp -s - deploy/neonvm.yaml || { echo "deploy/neonvm.yaml is out of date: run make manifests" >&2; exit 1; } ;;
  "") rendered > deploy/neonvm.yaml ;;
  *) echo "render-neonvm.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
esac

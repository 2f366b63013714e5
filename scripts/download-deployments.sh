#!/usr/bin/env bash
# Downloads the manifests of cert-manager and NeonVM.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/download.bash

DEST=build/deployments
MIRROR=https://github.com
CERT_MANAGER=v1.16.2
NEONVM=v0.49.1

usage() {
  cat <<EOF
Usage: scripts/download-deployments.sh [--dest DIR] [--mirror URL] [--dry-run]

Downloads, for scripts/cluster-init.sh:
  cert-manager $CERT_MANAGER  certificates for NeonVM's webhooks
  NeonVM $NEONVM       multus, whereabouts, webhooks and network (neonvm), the controller, the VXLAN controller, and
                       the loader of the runner image
Existing files are not downloaded again. Checksums are in scripts/downloads.sha256.
  --dest DIR    folder for the manifests (default $DEST)
  --mirror URL  download from a mirror of $MIRROR, with the same paths
  --dry-run     print the downloads only
EOF
}

read_options "$@"

fetch() { # URL FILE
  if [ "$dry_run" = 1 ]; then echo "$1 -> $2"; else download "$1" "$2"; fi
}

fetch "$MIRROR/cert-manager/cert-manager/releases/download/$CERT_MANAGER/cert-manager.yaml" "$DEST/cert-manager.yaml"
for part in multus-dev whereabouts neonvm neonvm-controller neonvm-vxlan-controller neonvm-runner-image-loader; do
  fetch "$MIRROR/neondatabase/autoscaling/releases/download/$NEONVM/$part.yaml" "$DEST/$part.yaml"
done
[ "$dry_run" = 1 ] || echo "Manifests are in $DEST"

#!/usr/bin/env bash
# Downloads the manifests of the systems that the autoscaler runs beside on a real cluster.
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
  NeonVM $NEONVM       multus, whereabouts, webhooks and network (neonvm), the controller, the overlay's controller
                       and the loader of the runner's image
Does nothing on repeat. Checksums are kept in scripts/downloads.sha256.
  --dest DIR    where to put them (default $DEST)
  --mirror URL  fetch from here instead of $MIRROR; paths below it stay the same
  --dry-run     print what would be fetched
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

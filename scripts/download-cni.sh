#!/usr/bin/env bash
# Downloads the CNI plugins that nodes need for the VMs' flat network.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/download.bash

VERSION=v1.6.2
DEST=build/cni
MIRROR=https://github.com

usage() {
  cat <<EOF
Usage: scripts/download-cni.sh [--dest DIR] [--mirror URL] [--dry-run]

Downloads and unpacks the CNI plugins $VERSION (bridge, host-local, static, tuning and so on), unless they exist.
Checksums are in scripts/downloads.sha256.
  --dest DIR    folder to unpack them into (default $DEST)
  --mirror URL  download from a mirror of $MIRROR, with the same paths
  --dry-run     print the downloads only
EOF
}

read_options "$@"

case "$(uname -m)" in
  x86_64) arch=amd64 ;;
  aarch64) arch=arm64 ;;
  *) echo "download-cni.sh: no CNI plugins are published for $(uname -m)" >&2; exit 1 ;;
esac

archive="cni-plugins-linux-$arch-$VERSION.tgz"
url="$MIRROR/containernetworking/plugins/releases/download/$VERSION/$archive"
if [ "$dry_run" = 1 ]; then
  echo "$url -> $DEST"
  exit 0
fi
download "$url" "$DEST/$archive"
tar -xzf "$DEST/$archive" -C "$DEST"
echo "CNI plugins $VERSION are in $DEST"

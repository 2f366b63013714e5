#!/usr/bin/env bash
# Builds a release of this commit: images, chart, lists of what is inside, provenance, checksums, one archive of all.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
Usage: scripts/release.sh [--platform PLATFORM]... [--images NAME]... [--registry PLACE] [--repository URL] [--output FOLDER]

Builds the images of this commit, with its version as their tag, and from them the release in FOLDER (build/release).
  --platform    linux/amd64 or linux/arm64, repeatable (default: this machine's)
  --images      only these images, repeatable (default: all)
  --registry    HOST[:PORT][/PATH] that the images will be pushed to, for the chart and their names (localhost:5001)
  --repository  where the sources are, for the provenance
  --output      a folder that is empty, is not there, or has an earlier release, which is replaced when the new one is whole
Needs `make env` first; `neonvm-runner` and `postgres-vm` need what vm_image/build.sh needs.
EOF
}

platforms=() names=() registry=() more=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --platform) platforms+=(--platform "$2"); shift ;;
    --images) names+=("$2"); shift ;;
    --registry) registry=(--registry "$2"); shift ;;
    --repository | --output) more+=("$1" "$2"); shift ;;
    *) echo "release.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

bin=.venv/bin
version=$($bin/python -c 'import protocol; print(protocol.VERSION)')
tag=$(git describe --exact-match --tags 2>/dev/null || true)
if [ -n "$tag" ] && [ "$tag" != "v$version" ]; then
  echo "release.sh: the tag of this commit is $tag and its version is $version" >&2
  exit 1
fi
$bin/python -m deploy.release --check "${more[@]}" # before the images are built, which takes minutes
images=$(mktemp -d)
trap 'rm -rf "$images"' EXIT
$bin/autoscale images build "${names[@]}" "${platforms[@]}" "${registry[@]}" --tag "v$version" --output "$images"
$bin/python -m deploy.release "${registry[@]}" "${more[@]}" "$images"/*.tar

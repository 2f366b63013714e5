#!/usr/bin/env bash
# Builds a release of this commit: images, chart, SBOMs, provenance, checksums, and one archive of everything.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
Usage: scripts/release.sh [--platform PLATFORM]... [--images NAME]... [--registry PLACE] [--repository URL] [--output FOLDER]

Builds the images of this commit, tagged with its version, and the release in FOLDER (default: build/release).
  --platform    linux/amd64 or linux/arm64, repeatable (default: this machine's)
  --images      only these images, repeatable (default: all)
  --registry    HOST[:PORT][/PATH] of the images' references and the chart (default: localhost:5001)
  --repository  URL of the sources, for the provenance
  --output      folder of the release; must be empty, missing, or an earlier release, which is replaced at the end
Run `make env` first. `neonvm-runner` and `postgres-vm` need the packages of vm_image/build.sh.
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
  echo "release.sh: this commit's tag is $tag, but its version is $version" >&2
  exit 1
fi
$bin/python -m deploy.release --check "${more[@]}" # early: building the images takes minutes
images=$(mktemp -d)
trap 'rm -rf "$images"' EXIT
$bin/autoscale images build "${names[@]}" "${platforms[@]}" "${registry[@]}" --tag "v$version" --output "$images"
$bin/python -m deploy.release "${registry[@]}" "${more[@]}" "$images"/*.tar

#!/usr/bin/env bash
# Builds the container images of the scheduler and the agent, and pushes them to the local registry.
set -euo pipefail
cd "$(dirname "$0")/.."

REGISTRY=localhost:5001
TAG=dev

usage() {
  cat <<EOF
Usage: scripts/build-images.sh [--registry HOST:PORT] [--tag TAG] [--no-push] [--dry-run]

Builds autoscale-scheduler and autoscaler-agent from deploy/images/Dockerfile with docker or podman.
  --registry HOST:PORT  where to push (default $REGISTRY, started by vm_image/start-local-registry.sh)
  --tag TAG             the tag (default $TAG)
  --no-push             build only
  --dry-run             print the commands
EOF
}

push=1 run=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --registry) REGISTRY=${2:?--registry needs HOST:PORT}; shift ;;
    --tag) TAG=${2:?--tag needs a value}; shift ;;
    --no-push) push=0 ;;
    --dry-run) run=(echo) ;;
    *) echo "build-images.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

if command -v docker >/dev/null; then tool=docker
elif command -v podman >/dev/null; then tool=podman
elif [ ${#run[@]} -gt 0 ]; then tool=docker
else echo "build-images.sh needs docker or podman" >&2; exit 1
fi

for pair in scheduler:autoscale-scheduler agent:autoscaler-agent; do
  image="$REGISTRY/${pair##*:}:$TAG"
  "${run[@]}" "$tool" build -f deploy/images/Dockerfile --target "${pair%%:*}" -t "$image" .
  [ "$push" = 0 ] || "${run[@]}" "$tool" push "$image"
done

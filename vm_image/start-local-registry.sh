#!/usr/bin/env bash
# Starts a local container registry at localhost:5001 for the project's images.
set -euo pipefail

ADDRESS=127.0.0.1:5001
CONTAINER=autoscale-registry
HOME_DIR=${AUTOSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/autoscale}/registry

usage() {
  cat <<EOF
Usage: vm_image/start-local-registry.sh [--stop]

Starts a container registry at $ADDRESS, unless one is running. With Docker, it is a container named
$CONTAINER. Otherwise it is the program in Debian's package docker-registry, which is unpacked but not installed, because
the package would start another registry on all interfaces. Images are stored in
$HOME_DIR (or in the container).
  --stop  stop it; images are kept
EOF
}

answers() {
  curl --fail --silent --output /dev/null --max-time 2 "http://$ADDRESS/v2/"
}

has_docker() {
  command -v docker >/dev/null && docker info >/dev/null 2>&1
}

# wait_for_response HINT [PID]: waits until the registry responds, or the process has ended.
wait_for_response() {
  for _ in {1..50}; do
    if answers; then echo "The registry responds at http://$ADDRESS"; return; fi
    if [ -n "${2:-}" ] && ! kill -0 "$2" 2>/dev/null; then break; fi
    sleep 0.2
  done
  echo "The registry does not respond at $ADDRESS; $1" >&2
  exit 1
}

# The address is part of image references, so another port cannot be used.
check_port_is_free() {
  local found
  (exec 3<>"/dev/tcp/${ADDRESS%:*}/${ADDRESS#*:}") 2>/dev/null || return 0
  found=$(ss -Hltnp "sport = :${ADDRESS#*:}" 2>/dev/null | sed -n 's/.*users:(("\([^"]*\)",pid=\([0-9]*\).*/\1 (pid \2)/p' | head -n 1)
  [ -n "$found" ] || found="another program; this names it: sudo ss -ltnp \"sport = :${ADDRESS#*:}\""
  echo "$ADDRESS is taken by $found" >&2
  exit 1
}

start_container() {
  docker start "$CONTAINER" >/dev/null 2>&1 ||
    docker run --detach --restart=always --publish "$ADDRESS:5000" --name "$CONTAINER" registry:2 >/dev/null
  wait_for_response "see: docker logs $CONTAINER"
}

unpack_program() {
  [ ! -x "$HOME_DIR/usr/bin/docker-registry" ] || return 0
  local part
  command -v apt-get >/dev/null || { echo "This needs a docker engine, or apt-get to fetch docker-registry." >&2; exit 1; }
  part=$(mktemp -d "$HOME_DIR/.unpack.XXXXXX")
  # shellcheck disable=SC2064 # the folder is known now, and gone from scope when the trap runs
  trap "rm -rf '$part'" EXIT
  # Fresh container images usually have no package index.
  (cd "$part" && { apt-get -qq download docker-registry 2>/dev/null || { apt-get -qq update && apt-get -qq download docker-registry; }; }) || {
    echo "Could not fetch Debian's package docker-registry; as root try: apt-get update" >&2
    exit 1
  }
  dpkg-deb -x "$part"/docker-registry_*.deb "$part/tree"
  mv "$part/tree/usr" "$HOME_DIR/usr"
}

start_program() {
  mkdir -p "$HOME_DIR/data"
  unpack_program
  cat >"$HOME_DIR/config.yml" <<EOF
version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: "$HOME_DIR/data"}, delete: {enabled: true}}
http: {addr: "$ADDRESS"}
EOF
  setsid "$HOME_DIR/usr/bin/docker-registry" serve "$HOME_DIR/config.yml" </dev/null >"$HOME_DIR/log" 2>&1 &
  echo $! >"$HOME_DIR/pid"
  wait_for_response "see: $HOME_DIR/log" "$!"
}

# The pid of the process of start_program, if it is still running.
program_pid() {
  local pid
  pid=$(cat "$HOME_DIR/pid" 2>/dev/null) || return 1
  tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "serve $HOME_DIR/config.yml" && echo "$pid"
}

stop() {
  local pid
  if pid=$(program_pid); then
    kill "$pid"
    rm -f "$HOME_DIR/pid"
    echo "Stopped the registry"
  elif has_docker && docker stop "$CONTAINER" >/dev/null 2>&1; then
    echo "Stopped the container $CONTAINER"
  else
    echo "This script's registry is not running"
  fi
}

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --stop) stop; exit 0 ;;
  "") ;;
  *) echo "start-local-registry.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
esac

if answers; then
  echo "A registry already responds at http://$ADDRESS"
  exit 0
fi
check_port_is_free
if has_docker; then start_container; else start_program; fi

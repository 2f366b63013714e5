#!/usr/bin/env bash
# Runs the quick test suite with other versions of Python than .venv's.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
Usage: scripts/test-pythons.sh [VERSION]...

Runs `make test` of this commit and uncommitted changes with each VERSION of Python (default: 3.11 and 3.14, the oldest
and newest supported). If this machine does not have it, mmdebstrap unpacks a Debian release with it into the cache
(300 MB, as root). TEST_ARGS is passed on.
EOF
}

# Debian releases by version of their python3.
declare -A RELEASES=([3.11]=bookworm [3.13]=trixie [3.14]=forky)
# Needed by the quick test suite.
PACKAGES=ca-certificates,curl,git,iproute2,make,openssl,procps,python3,python3-venv

copy_checkout() {
  git clone --quiet . "$1"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --archive --parents --target-directory="$1" 2>/dev/null || true
}

debian_root() {
  local version=$1 root=$2
  [ ! -e "$root/usr/bin/python$version" ] || return 0
  [ "$(id -u)" = 0 ] || { echo "test-pythons.sh: no python$version; unpacking Debian's needs root" >&2; exit 1; }
  command -v mmdebstrap >/dev/null || scripts/install-packages.sh guests
  echo "Unpacking Debian ${RELEASES[$version]} for its python$version"
  rm -rf "$root.new"
  mkdir -p "$root.new"
  # A mirror's lists of a testing release may have expired.
  mmdebstrap --quiet --variant=apt --include="$PACKAGES" --aptopt='Acquire::Check-Valid-Until "false"' \
    "${RELEASES[$version]}" "$root.new"
  mv "$root.new" "$root"
}

test_in_root() {
  local version=$1 root=$2 file
  rm -rf "$root/checkout"
  copy_checkout "$root/checkout"
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || cp --dereference "$file" "$root$file"
  done
  # A new mount namespace, so the mounts end with it.
  # shellcheck disable=SC2016 # the inner shell expands
  ROOT=$root VERSION=$version unshare --mount --propagation private bash -euc '
    for each in proc dev sys; do mount --rbind "/$each" "$ROOT/$each"; done
    mount -t tmpfs tmpfs "$ROOT/run"
    chroot "$ROOT" env HOME=/root TMPDIR=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      make --directory=/checkout test PYTHON="python$VERSION" TEST_ARGS="$TEST_ARGS"'
}

test_here() (
  folder=$(mktemp --directory)
  trap 'rm -rf "$folder"' EXIT
  copy_checkout "$folder/checkout"
  make --directory="$folder/checkout" test PYTHON="python$1" TEST_ARGS="$TEST_ARGS"
)

main() {
  local version cache=${AUTOSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/autoscale}
  case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    -*) echo "test-pythons.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  export TEST_ARGS=${TEST_ARGS:-}
  [ $# -gt 0 ] || set -- 3.11 3.14
  for version in "$@"; do
    echo "== Python $version"
    if "python$version" -c 'import ensurepip, venv' 2>/dev/null; then
      test_here "$version"
    elif [ -n "${RELEASES[$version]:-}" ]; then
      debian_root "$version" "$cache/python-$version"
      test_in_root "$version" "$cache/python-$version"
    else
      echo "test-pythons.sh: python$version is neither installed nor in a Debian release" >&2
      exit 1
    fi
  done
}

main "$@"

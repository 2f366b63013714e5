#!/usr/bin/env bash
# Installs missing Debian packages of a group of tasks.
set -euo pipefail

usage() {
  cat <<'EOF'
Usage: scripts/install-packages.sh [--check] GROUP...

Installs the Debian packages of each GROUP that are missing:
  python      Python with venv, for the project's environment
  guests      QEMU, and tools that build and run the guest image
  pgbench     pgbench, for load on postgres
  kubernetes  runc, CNI plugins and nftables, for nodes of a real Kubernetes
  monitoring  Prometheus and promtool, for tests of rules and dashboards
  browser     Chromium and a font, for tests of the page
  images      skopeo, for pushing images to registries

Root privileges are needed; without them, the command to run is printed, and the exit status is 1.
  --check  print missing packages only; install nothing
EOF
}

# command to look for : package
declare -A GROUPS_OF=(
  [python]="python3:python3"
  [guests]="qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils mmdebstrap:mmdebstrap busybox:busybox-static ip:iproute2 mke2fs:e2fsprogs"
  [pgbench]="pgbench:postgresql-15"
  [kubernetes]="runc:runc ptp:containernetworking-plugins nft:nftables ip:iproute2 busybox:busybox-static"
  [monitoring]="promtool:prometheus"
  [browser]="chromium:chromium fc-list:fontconfig"
  [images]="skopeo:skopeo"
)
# Without root, the guest image is built in a user namespace (vm_image/host.py).
declare -A WITHOUT_ROOT=([guests]="newuidmap:uidmap unshare:util-linux")

present() {
  command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/usr/lib/cni/$1" ] ||
    [ -x "/usr/lib/postgresql/15/bin/$1" ]
}

missing_of() {
  local pair pairs=${GROUPS_OF[$1]}
  [ "$(id -u)" = 0 ] || pairs+=" ${WITHOUT_ROOT[$1]:-}"
  for pair in $pairs; do
    present "${pair%%:*}" || echo "${pair##*:}"
  done
  # busybox must be statically linked: guests and images have no libraries for it.
  if [[ "${GROUPS_OF[$1]}" == *busybox-static* ]] && present busybox && ldd "$(command -v busybox)" >/dev/null 2>&1; then
    echo busybox-static
  fi
  if [ "$1" = python ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then echo python3-venv; fi
  # Without a font Chromium shows boxes for letters.
  if [ "$1" = browser ] && [ ! -d /usr/share/fonts/truetype/dejavu ]; then echo fonts-dejavu-core; fi
}

# Installing Debian's postgresql would start a server; only pgbench is needed.
keep_postgres_quiet() {
  [ -e /etc/postgresql-common/createcluster.conf ] && return
  mkdir -p /etc/postgresql-common
  echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
}

# Installing Debian's prometheus would start a server; only the programs are needed.
keep_prometheus_quiet() {
  [ -d /run/systemd/system ] || return 0
  systemctl mask prometheus.service
}

main() {
  local check=0 group missing=()
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help) usage; exit 0 ;;
      --check) check=1 ;;
      -*) echo "install-packages.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
      *)
        [ -n "${GROUPS_OF[$1]:-}" ] || { echo "install-packages.sh: no group '$1'" >&2; usage >&2; exit 2; }
        group=$1
        while read -r package; do [ -z "$package" ] || missing+=("$package"); done < <(missing_of "$group")
        ;;
    esac
    shift
  done
  [ ${#missing[@]} -gt 0 ] || exit 0
  if [ "$check" = 1 ] || [ "$(id -u)" != 0 ]; then
    echo "Missing packages: ${missing[*]}" >&2
    echo "Install them with: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  [[ " ${missing[*]} " != *" postgresql-15 "* ]] || keep_postgres_quiet
  [[ " ${missing[*]} " != *" prometheus "* ]] || keep_prometheus_quiet
  apt-get install -y -q --no-install-recommends -o Dpkg::Options::=--force-confold "${missing[@]}"
}

main "$@"

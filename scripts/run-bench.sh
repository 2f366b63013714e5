#!/usr/bin/env bash
# Runs pgbench against a postgres VM and plots its vCPUs, memory and transactions.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: scripts/run-bench.sh [--seconds N] [--clients N] [--scale N] [--name CLUSTER] [--kubeconfig FILE]

  VM_NAME   the VM, as NAME or NAMESPACE/NAME (default: postgres14-disk-test, the VM of vm-deploy.yaml)

Uses the running local cluster, else the cluster of $KUBECONFIG. Ctrl-C stops the benchmark, not the VM. Exits with 0 if
no transaction failed.
TEXT
}

for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
        usage
        exit 0
    fi
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
autoscale=$root/.venv/bin/autoscale
if [[ ! -x $autoscale ]]; then
    autoscale=$(command -v autoscale) || {
        echo "run-bench.sh: the command 'autoscale' is not installed; run: make env" >&2
        exit 1
    }
fi
exec "$autoscale" bench "${VM_NAME:-postgres14-disk-test}" "$@"

#!/usr/bin/env bash
# Sets up a Kubernetes cluster for the autoscaler: what NeonVM needs, then our scheduler and agents.
set -euo pipefail
cd "$(dirname "$0")/.."

DEPLOYMENTS=build/deployments
TIMEOUT=180s

usage() {
  cat <<EOF
Usage: scripts/cluster-init.sh (--context NAME | --kind NAME) [--only-ours] [--dry-run]

Applies, in order, and waits for each to be ready:
  1. cert-manager, multus, whereabouts (downloaded by scripts/download-deployments.sh)
  2. the VirtualMachine resources (deploy/neonvm.yaml) and NeonVM's controllers (downloaded)
  3. the scheduler (deploy/scheduler-deploy.yaml) and the agents (deploy/kubernetes/agent-daemonset.yaml)
Every step can be repeated.
  --context NAME  the kubectl context to set up; never guessed, so that nothing lands in the wrong cluster
  --kind NAME     make a kind cluster of that name first, from deploy/kubernetes/kind.yaml
  --only-ours     leave out what is downloaded: resources, scheduler and agents only
  --dry-run       let the cluster check every manifest, but change nothing
EOF
}

context='' kind='' only_ours=0 dry=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --context) context=${2:?--context needs a name}; shift ;;
    --kind) kind=${2:?--kind needs a name}; shift ;;
    --only-ours) only_ours=1 ;;
    --dry-run) dry=(--dry-run=server) ;;
    *) echo "cluster-init.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$context$kind" ]; then usage >&2; exit 2; fi

need() {
  command -v "$1" >/dev/null || { echo "cluster-init.sh needs $1, which is not on the PATH" >&2; exit 1; }
}

apply() { # FILE
  [ -f "$1" ] || { echo "$1 is missing: run scripts/download-deployments.sh first" >&2; exit 1; }
  echo "apply $1"
  kubectl --context "$context" apply --server-side --force-conflicts "${dry[@]}" -f "$1"
}

ready() { # NAMESPACE KIND/NAME
  [ ${#dry[@]} -eq 0 ] || return 0
  kubectl --context "$context" -n "$1" rollout status "$2" --timeout="$TIMEOUT"
}

need kubectl
if [ -n "$kind" ]; then
  need kind
  kind get clusters | grep -qx "$kind" || kind create cluster --name "$kind" --config deploy/kubernetes/kind.yaml
  context="kind-$kind"
fi

if [ "$only_ours" = 0 ]; then
  apply "$DEPLOYMENTS/cert-manager.yaml"
  ready cert-manager deployment/cert-manager-webhook
  apply "$DEPLOYMENTS/multus-dev.yaml"
  ready kube-system daemonset/kube-multus-ds
  apply "$DEPLOYMENTS/whereabouts.yaml"
  ready kube-system daemonset/whereabouts
fi

apply deploy/neonvm.yaml
if [ ${#dry[@]} -eq 0 ]; then
  kubectl --context "$context" wait --for=condition=Established --timeout="$TIMEOUT" \
    crd/virtualmachines.vm.neon.tech crd/virtualmachinemigrations.vm.neon.tech
fi
if [ "$only_ours" = 0 ]; then
  for part in neonvm-controller neonvm-vxlan-controller neonvm-runner-image-loader; do
    apply "$DEPLOYMENTS/$part.yaml"
  done
  ready neonvm-system deployment/neonvm-controller
fi

apply deploy/scheduler-deploy.yaml
ready kube-system deployment/autoscale-scheduler
apply deploy/kubernetes/agent-daemonset.yaml
ready kube-system daemonset/autoscaler-agent
echo "The cluster of context $context is set up. Next: kubectl --context $context apply -f vm-deploy.yaml"

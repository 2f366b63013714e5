#!/usr/bin/env bash
# Sets up a Kubernetes cluster for the autoscaler: NeonVM and its dependencies, then our scheduler and agents.
set -euo pipefail
cd "$(dirname "$0")/.."

DEPLOYMENTS=build/deployments
CNI=build/cni
REGISTRY=localhost:5001
TAG=dev
REGISTRY_CONTAINER=autoscale-registry
TIMEOUT=180s
NAMESPACE=kube-system

usage() {
  cat <<EOF
Usage: scripts/cluster-init.sh (--context NAME | --kind NAME) [--registry HOST:PORT] [--tag TAG] [--only-ours]
                       [--reset-settings] [--beside-others] [--dry-run]

Applies, in this order, and waits until each is ready:
  1. cert-manager, multus, whereabouts (downloaded by scripts/download-deployments.sh)
  2. the VirtualMachine resources (deploy/neonvm.yaml) and NeonVM itself (downloaded)
  3. the scheduler (deploy/scheduler-deploy.yaml), with the kube-scheduler of the cluster's own version,
     and the agents (deploy/kubernetes/agent-daemonset.yaml)
Every step is idempotent. Settings (our ConfigMaps) are created once; a later run shows how they differ from this
release's, and does not change them. The images of step 3 are those of 'autoscale images push'.
  --context NAME  the kubectl context to set up (no default, to avoid setting up the wrong cluster)
  --kind NAME     create a kind cluster first, from deploy/kubernetes/kind.yaml, and configure the registry and the
                  CNI plugins (scripts/download-cni.sh) on its nodes
  --registry HOST:PORT, --tag TAG
                  the images, as for 'autoscale images push' (default $REGISTRY, $TAG)
  --only-ours     skip everything that is downloaded: apply the CRDs, the scheduler and the agents only
  --reset-settings
                  replace the settings with this release's
  --beside-others continue even if another autoscale-scheduler or autoscaler-agent is running, such as the original
                  project's; both would resize the same VMs (docs/operations-cluster.md, taking over)
  --dry-run       validate every manifest on the server, but change nothing (NeonVM's namespace must exist)
EOF
}

context='' kind='' registry=$REGISTRY tag=$TAG only_ours=0 reset=0 beside=0 dry=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --context) context=${2:?--context needs a name}; shift ;;
    --kind) kind=${2:?--kind needs a name}; shift ;;
    --registry) registry=${2:?--registry needs HOST:PORT}; shift ;;
    --tag) tag=${2:?--tag needs a value}; shift ;;
    --only-ours) only_ours=1 ;;
    --reset-settings) reset=1 ;;
    --beside-others) beside=1 ;;
    --dry-run) dry=(--dry-run=server) ;;
    *) echo "cluster-init.sh: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$context$kind" ]; then usage >&2; exit 2; fi
if [ -n "$context" ] && [ -n "$kind" ]; then
  echo "cluster-init.sh: --context and --kind cannot be combined" >&2
  exit 2
fi

need() {
  command -v "$1" >/dev/null || { echo "cluster-init.sh: $1 is not installed" >&2; exit 1; }
}

of_cluster() {
  kubectl --context "$context" "$@"
}

# apply FILE [FILTER]: FILTER is a command that prints the part of FILE to apply.
apply() {
  [ -f "$1" ] || { echo "$1 is missing: run scripts/download-deployments.sh first" >&2; exit 1; }
  echo "apply $1"
  "${2:-cat}" "$1" | of_cluster apply --server-side --force-conflicts "${dry[@]}" -f -
}

# settings FILE [NAME]: print the ConfigMap NAME; without NAME, the names of all; with -, everything except ConfigMaps.
settings() {
  awk -v wanted="${2:-}" '
    function flush() {
      if (wanted == "-" && !is_settings) printf "%s", document
      else if (wanted == "" && is_settings) print name
      else if (is_settings && name == wanted) printf "%s", document
      document = name = ""; is_settings = 0
    }
    /^---/ { flush() }
    /^kind: ConfigMap$/ { is_settings = 1 }
    /^  name: / && name == "" { name = $2 }
    { document = document $0 "\n" }
    END { flush() }' "$1"
}

# Creates missing settings, shows how existing ones differ, and replaces them only with --reset-settings.
apply_settings() { # FILE
  local name known differs
  for name in $(settings "$1"); do
    known=$(of_cluster -n "$NAMESPACE" get configmap "$name" --ignore-not-found -o name)
    if [ "$reset" = 1 ] || [ -z "$known" ]; then
      echo "apply settings $name"
      settings "$1" "$name" | of_cluster apply --server-side --force-conflicts "${dry[@]}" -f -
      continue
    fi
    differs=0
    settings "$1" "$name" | of_cluster diff --server-side --force-conflicts -f - || differs=$?
    [ "$differs" -le 1 ] || { echo "The settings $name cannot be compared" >&2; exit 1; }
    [ "$differs" = 0 ] || echo "kept settings $name: they differ as shown; --reset-settings replaces them"
  done
}

without_settings() { # FILE
  settings "$1" -
}

# Two schedulers or two agents for the same VMs would undo each other's changes.
refuse_others() {
  local kind name found
  for kind in deployment/autoscale-scheduler daemonset/autoscaler-agent; do
    name=${kind#*/}
    found=$(of_cluster get "${kind%/*}" --all-namespaces --field-selector "metadata.name=$name" --ignore-not-found \
      -o jsonpath='{range .items[*]}{.metadata.namespace}{" "}{.spec.replicas}{"\n"}{end}' | awk '$2 != "0" { print $1 }')
    [ -z "$found" ] || [ "$beside" = 1 ] || {
      echo "$kind is running in namespace $found: another autoscaler manages the VMs of this cluster." >&2
      echo "See docs/operations-cluster.md, taking over. To continue anyway, use --beside-others." >&2
      exit 1
    }
  done
}

ready() { # NAMESPACE KIND/NAME
  [ ${#dry[@]} -eq 0 ] || return 0
  of_cluster -n "$1" rollout status "$2" --timeout="$TIMEOUT"
}

# NeonVM's manifest also has the CRDs VirtualMachine and VirtualMachineMigration; we use those in deploy/neonvm.yaml.
without_our_resources() { # FILE
  awk '
    function flush() { if (!(is_definition && is_ours)) printf "%s", document; document = ""; is_definition = is_ours = 0 }
    /^---/ { flush() }
    /^kind: CustomResourceDefinition$/ { is_definition = 1 }
    /^  name: virtualmachine(s|migrations)\.vm\.neon\.tech$/ { is_ours = 1 }
    { document = document $0 "\n" }
    END { flush() }' "$1"
}

with_our_images() { # FILE
  without_settings "$1" | sed -E "s|$REGISTRY/(autoscale[a-z-]+):$TAG|$registry/\1:$tag|"
}

version_of_cluster() {
  of_cluster get --raw /version | sed -nE 's/.*"gitVersion": *"(v[0-9]+\.[0-9]+\.[0-9]+).*/\1/p'
}

# kube-scheduler must not be newer than the API server.
with_our_images_and_kube_scheduler() { # FILE
  with_our_images "$1" | sed -E "s|(/kube-scheduler):v[0-9.]+|\1:$version|"
}

give_registry() { # NODE
  docker exec "$1" mkdir -p "/etc/containerd/certs.d/$REGISTRY"
  echo "[host.\"http://$REGISTRY_CONTAINER:5000\"]" |
    docker exec -i "$1" cp /dev/stdin "/etc/containerd/certs.d/$REGISTRY/hosts.toml"
}

give_plugins() { # NODE
  [ -d "$CNI" ] || { echo "$CNI is missing: run scripts/download-cni.sh first" >&2; exit 1; }
  tar -C "$CNI" --exclude='*.tgz' -cf - . | docker exec -i "$1" tar -xf - -C /opt/cni/bin
}

make_kind_cluster() {
  local node network
  need kind
  need docker
  docker inspect "$REGISTRY_CONTAINER" >/dev/null 2>&1 || {
    echo "The registry's container $REGISTRY_CONTAINER does not exist: run vm_image/start-local-registry.sh first" >&2
    exit 1
  }
  kind get clusters | grep -qx "$kind" || kind create cluster --name "$kind" --config deploy/kubernetes/kind.yaml
  network=$(docker inspect --format '{{if index .NetworkSettings.Networks "kind"}}joined{{end}}' "$REGISTRY_CONTAINER")
  [ "$network" = joined ] || docker network connect kind "$REGISTRY_CONTAINER"
  for node in $(kind get nodes --name "$kind"); do
    give_registry "$node"
    [ "$only_ours" = 1 ] || give_plugins "$node"
  done
  context="kind-$kind"
}

need kubectl
[ -z "$kind" ] || make_kind_cluster
version=$(version_of_cluster)
[ -n "$version" ] || { echo "cannot read the server version of context $context" >&2; exit 1; }
refuse_others

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
  of_cluster wait --for=condition=Established --timeout="$TIMEOUT" \
    crd/virtualmachines.vm.neon.tech crd/virtualmachinemigrations.vm.neon.tech
fi
if [ "$only_ours" = 0 ]; then
  apply "$DEPLOYMENTS/neonvm-runner-image-loader.yaml"
  apply "$DEPLOYMENTS/neonvm.yaml" without_our_resources
  ready neonvm-system daemonset/neonvm-device-plugin
  apply "$DEPLOYMENTS/neonvm-controller.yaml"
  ready neonvm-system deployment/neonvm-controller
  apply "$DEPLOYMENTS/neonvm-vxlan-controller.yaml"
  ready neonvm-system daemonset/neonvm-vxlan-controller
fi

apply_settings deploy/scheduler-deploy.yaml
apply deploy/scheduler-deploy.yaml with_our_images_and_kube_scheduler
ready "$NAMESPACE" deployment/autoscaling-scheduler
apply_settings deploy/kubernetes/agent-daemonset.yaml
apply deploy/kubernetes/agent-daemonset.yaml with_our_images
ready "$NAMESPACE" daemonset/autoscaling-agent
if [ ${#dry[@]} -gt 0 ]; then echo "Dry run of context $context succeeded; nothing was changed"; exit; fi
echo "The cluster of context $context is set up. Next: kubectl --context $context apply -f vm-deploy.yaml"

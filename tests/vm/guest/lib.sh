# Functions for the checks, sourced by each command that runs in the machine.

MANIFESTS=/etc/kubernetes/manifests
ROOT=${ROOT:-/var/lib/podwright}
IMAGE=docker.io/library/busybox:stable

# Starts the agent with these flags.
agent_start() {
    echo "FLAGS=--root $ROOT $*" >/etc/podwright.flags
    systemctl restart podwright
    wait_for 120 "the agent answers" podwright get pods --root "$ROOT"
}

# Waits until a command succeeds: SECONDS WHAT COMMAND...
wait_for() {
    local limit=$1 what=$2 begin=$SECONDS
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $((SECONDS - begin)) -ge "$limit" ]; then
            echo "not within $limit s: $what" >&2
            podwright get pods --root "$ROOT" >&2 || true
            return 1
        fi
        sleep 1
    done
}

# Writes a manifest: NAME POD-FIELDS CONTAINER-FIELDS COMMAND. The fields are in the flow style of YAML.
put_pod() {
    local command
    command=$(jq -n --arg it "$4" '$it')
    cat >"$MANIFESTS/.$1" <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec: {$2${2:+,} terminationGracePeriodSeconds: 5,
  containers: [{name: main, image: "$IMAGE", imagePullPolicy: Never, $3${3:+,} command: [sh, -c, $command]}]}
YAML
    mv "$MANIFESTS/.$1" "$MANIFESTS/$1.yaml"
}

# The fields of a pod: NAME JQ-FILTER.
pod() { podwright get pods --root "$ROOT" -o json | jq -r --arg name "$1-vm" ".items[] | select(.metadata.name == \$name) | $2"; }

phase_is() { [ "$(pod "$1" .status.phase)" = "$2" ]; }
wait_phase() { wait_for "${3:-180}" "pod $1 is $2" phase_is "$1" "$2"; }
no_pods() { [ "$(podwright get pods --root "$ROOT" -o json | jq '.items | length')" = 0 ]; }

# Removes all pods.
clear_pods() {
    rm -f $MANIFESTS/*
    wait_for 180 "all pods are removed" no_pods
}

#!/usr/bin/env bash
# A bare TPU slice through Cloud TPU's queued resources: asked for, awaited, made one Ray cluster, given back.
# Which slice, and where, stands in queued.env beside this file.
# usage: queued.sh create|await|prepare|join|run VERB WORKDIR|delete
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=/dev/null
source ./queued.env
: "${NAME:?}" "${PROJECT:?}" "${ZONE:?}" "${ACCELERATOR:?}" "${RUNTIME:?}" "${HOSTS:?}"
: "${IMAGE:?}" "${REGISTRY?}" "${SHARE:?}" "${MOUNT:?}" "${NETWORK:?}" "${SUBNET:?}" "${ACCOUNT:?}" "${SPOT?}"

where=(--project "$PROJECT" --zone "$ZONE")
poll=${POLL:-30} # seconds

create() {
  gcloud compute tpus queued-resources create "$NAME" "${where[@]}" --node-id "$NAME" \
    --accelerator-type "$ACCELERATOR" --runtime-version "$RUNTIME" --network "$NETWORK" --subnetwork "$SUBNET" \
    --service-account "$ACCOUNT" --scopes https://www.googleapis.com/auth/cloud-platform \
    ${SPOT:+--spot} --async --quiet
}

await() {
  local state
  while true; do
    state=$(gcloud compute tpus queued-resources describe "$NAME" "${where[@]}" --format 'value(state.state)')
    echo "$(date +%T) $NAME is $state"
    case $state in
      ACTIVE) return ;;
      FAILED | SUSPENDING | SUSPENDED | DELETING)
        echo "$NAME will not become usable; delete it and ask again" >&2
        return 1
        ;;
    esac
    sleep "$poll"
  done
}

# Runs a command on the given workers of the slice: an index, a range, or all.
on() {
  gcloud compute tpus tpu-vm ssh "$NAME" "${where[@]}" --quiet --worker "$1" --command "$2"
}

prepare() {
  on all "mkdir -p -m 700 podzero"
  gcloud compute tpus tpu-vm scp experiment.yaml run.sh token "$NAME:podzero/" "${where[@]}" --quiet --worker all
  on all "sudo apt-get -o DPkg::Lock::Timeout=300 update -q && \
    sudo apt-get -o DPkg::Lock::Timeout=300 install -q -y nfs-common && \
    sudo mkdir -p $MOUNT && (mountpoint -q $MOUNT || sudo mount -o hard,nolock $SHARE $MOUNT)"
  [[ -z $REGISTRY ]] || on all "sudo gcloud auth configure-docker $REGISTRY --quiet"
  on all "sudo docker pull --quiet $IMAGE"
}

# Starts the container with a Ray node in it; what follows the workers are the arguments of `ray start`.
node() {
  on "$1" "sudo docker rm --force podzero 2>/dev/null; \
    sudo docker run --detach --name podzero --init --privileged --network host --shm-size 8g --ulimit nofile=65536:65536 \
    --volume \$HOME/podzero:/srv/podzero:ro --volume $MOUNT:$MOUNT \
    --env RAY_AUTH_MODE=token --env RAY_AUTH_TOKEN_PATH=/srv/podzero/token \
    $IMAGE ray start ${*:2} --disable-usage-stats --block"
}

join() {
  local head
  head=$(gcloud compute tpus tpu-vm describe "$NAME" "${where[@]}" --format 'value(networkEndpoints[0].ipAddress)')
  node 0 --head --port 6379 --dashboard-host 127.0.0.1
  on 0 "for second in \$(seq 120); do sudo docker exec podzero ray health-check --address $head:6379 && exit; \
    sleep 1; done; sudo docker logs podzero; exit 1"
  if ((HOSTS > 1)); then
    node "1-$((HOSTS - 1))" --address "$head:6379"
  fi
}

run() {
  on 0 "sudo docker exec podzero bash /srv/podzero/run.sh $*"
}

delete() {
  gcloud compute tpus queued-resources delete "$NAME" "${where[@]}" --force --quiet
}

case ${1:-} in
  create | await | prepare | join | run | delete) "$@" ;;
  *) echo "queued.sh: expected create, await, prepare, join, run or delete, found '${1:-nothing}'" >&2; exit 2 ;;
esac

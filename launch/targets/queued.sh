#!/usr/bin/env bash
# A TPU slice through Cloud TPU's queued resources: requests it, starts a Ray cluster on its hosts, and deletes it.
# queued.env beside this file holds the settings. Every command can be repeated after an interruption.
# usage: queued.sh create|await|check|prepare|join|send FILE|release|run VERB WORKDIR [NAME ...]|stop|delete
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=/dev/null
source ./queued.env
: "${NAME:?}" "${PROJECT:?}" "${ZONE:?}" "${ACCELERATOR:?}" "${RUNTIME:?}" "${HOSTS:?}" "${NO_RUN:?}" "${STOP:?}"
: "${FILES:?}" "${IMAGE:?}" "${REGISTRY?}" "${SHARE:?}" "${MOUNT:?}" "${NETWORK:?}" "${SUBNET:?}" "${ACCOUNT:?}" "${SPOT?}"
: "${RELEASE?}" "${MOST_SECONDS:?}"

queue=(gcloud compute tpus queued-resources)
where=(--project "$PROJECT" --zone "$ZONE")
poll=${POLL:-30}                        # seconds between two queries of the state; doubled after a failed one, up to 600
max_failures=${MAX_FAILURES:-12}        # consecutive failed queries, about 85 minutes, after which the wait ends
queue_timeout=${QUEUE_TIMEOUT:-604800} # seconds in the queue, a week, after which the wait ends

# Prints the state of the queued resource, ABSENT if there is none; fails if Google Cloud does not say.
state() {
  if "${queue[@]}" describe "$NAME" "${where[@]}" --format 'value(state.state)' 2>describe.log; then return; fi
  if grep -q NOT_FOUND describe.log; then echo ABSENT; else cat describe.log >&2 && return 1; fi
}

create() {
  local found
  found=$(state) || found=ABSENT # if it exists after all, `create` fails: the name is in use
  if [[ $found != ABSENT ]]; then
    echo "$NAME was requested before and is $found"
    return
  fi
  "${queue[@]}" create "$NAME" "${where[@]}" --node-id "$NAME" \
    --accelerator-type "$ACCELERATOR" --runtime-version "$RUNTIME" --network "$NETWORK" --subnetwork "$SUBNET" \
    --internal-ips --service-account "$ACCOUNT" --scopes https://www.googleapis.com/auth/cloud-platform \
    ${SPOT:+--spot} --async --quiet
}

await() {
  local found failures=0 pause
  while ((SECONDS < queue_timeout)); do
    if found=$(state) && [[ $found != ABSENT ]]; then
      echo "$(date +%T) $NAME is $found"
      failures=0 pause=$poll
    else
      failures=$((failures + 1)) pause=$((poll << failures < 600 ? poll << failures : 600))
      if ((failures >= max_failures)); then
        echo "gave up waiting for $NAME to be ACTIVE: its state could not be read $failures times in a row" >&2
        return 1
      fi
      echo "warning: waiting for $NAME to be ACTIVE, but its state could not be read${found:+: it is $found}" \
        "(failure $failures of $max_failures in a row); next query in $pause s" >&2
    fi
    case $found in
      ACTIVE) return ;;
      FAILED | SUSPENDING | SUSPENDED | DELETING)
        echo "$NAME is $found and will not be ACTIVE again: launch with --down, then launch again" >&2
        return 1
        ;;
    esac
    sleep "$pause"
  done
  echo "gave up waiting for $NAME to be ACTIVE after $queue_timeout s; it stays in the queue" >&2
  return 1
}

# Runs a command on the given hosts of the slice: an index, a range, or all. They have no external addresses.
on() {
  "${queue[@]}" ssh "$NAME" "${where[@]}" --tunnel-through-iap --quiet --worker "$1" --command "$2"
}

check() {
  on 0 "$NO_RUN"
}

prepare() {
  local files
  read -ra files <<<"$FILES"
  on all "mkdir -p -m 700 podzero"
  "${queue[@]}" scp "${files[@]}" token "$NAME:podzero/" "${where[@]}" --tunnel-through-iap --quiet --worker all
  on all "sudo apt-get -o DPkg::Lock::Timeout=300 update -q && \
    sudo apt-get -o DPkg::Lock::Timeout=300 install -q -y nfs-common && \
    sudo mkdir -p $MOUNT && (mountpoint -q $MOUNT || sudo mount -o hard,nolock $SHARE $MOUNT)"
  [[ -z $REGISTRY ]] || on all "sudo gcloud auth configure-docker $REGISTRY --quiet"
  on all "sudo docker pull --quiet $IMAGE"
}

# Starts a container with a Ray node on the given hosts, with the given restart policy; the other arguments are those of
# `ray start`. Where Ray ends, the container ends with all processes in it, which frees the chips.
node() {
  on "$1" "sudo docker rm --force podzero 2>/dev/null; \
    sudo docker run --detach --restart $2 --name podzero --init --privileged --network host --shm-size 8g --ulimit nofile=65536:65536 \
    --volume \$HOME/podzero:/srv/podzero:ro --volume $MOUNT:$MOUNT \
    --env RAY_AUTH_MODE=token --env RAY_AUTH_TOKEN_PATH=/srv/podzero/token \
    $IMAGE bash /srv/podzero/run.sh node ray start ${*:3} --disable-usage-stats --block"
}

join() {
  local head
  head=$(gcloud compute tpus tpu-vm describe "$NAME" "${where[@]}" --format 'value(networkEndpoints[0].ipAddress)')
  node 0 on-failure:20 --head --port 6379 --dashboard-host 127.0.0.1
  on 0 "for second in \$(seq 120); do sudo docker exec podzero ray health-check --address $head:6379 && exit; \
    sleep 1; done; sudo docker logs podzero; echo 'Ray on the head did not answer within 120 s; its log is above'; exit 1"
  if ((HOSTS > 1)); then
    # They join again after a failure of Ray, as the head begins its run again.
    node "1-$((HOSTS - 1))" on-failure:20 --address "$head:6379"
  fi
}

# Sends a file of variables to the head's container, and leaves no copy on the host.
send() {
  "${queue[@]}" scp "$1" "$NAME:podzero/variables" "${where[@]}" --tunnel-through-iap --quiet --worker 0
  on 0 "sudo docker exec -i podzero bash /srv/podzero/run.sh receive <podzero/variables; sent=\$?; \
    rm -f podzero/variables; exit \$sent"
}

run() {
  on 0 "sudo docker exec podzero bash /srv/podzero/run.sh $*"
}

# On the head's machine: deletes the slice once the run has ended for good, or its time is over.
release() {
  local over="docker exec podzero test -e /tmp/podzero.pid.code || ((SECONDS >= $MOST_SECONDS))" unit=''
  local delete="${queue[*]} delete $NAME ${where[*]} --force --quiet"
  [[ -z $RELEASE ]] || unit="sudo systemd-run --quiet --collect --unit podzero-release \
    bash -c 'until $over; do sleep 60; done; until $delete; do sleep 60; done'"
  on 0 "sudo systemctl stop podzero-release 2>/dev/null || true; $unit"
}

stop() {
  local found
  found=$(state)
  if [[ $found == ACTIVE ]]; then
    on 0 "$STOP"
  else
    echo "$NAME is $found, so no run is under way"
  fi
}

delete() {
  [[ $(state) == ABSENT ]] || "${queue[@]}" delete "$NAME" "${where[@]}" --force --quiet
}

case ${1:-} in
  create | await | check | prepare | join | send | release | run | stop | delete) "$@" ;;
  *) echo "queued.sh: expected create, await, check, prepare, join, send, release, run, stop or delete, found '${1:-nothing}'" >&2; exit 2 ;;
esac

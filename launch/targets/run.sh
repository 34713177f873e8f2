#!/usr/bin/env bash
# On the head of a cluster: starts the training run and waits until it trains, says how it is doing, or ends it.
# usage: run.sh start WORKDIR [NAME ...], run.sh status|log|stop WORKDIR, run.sh running, or run.sh receive <VARIABLES
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
log=${LOGFILE:-/tmp/podzero.log}
pidfile=${PIDFILE:-/tmp/podzero.pid}
variables=${VARIABLES:-/dev/shm/podzero-variables} # those of `podzero launch --env`, in memory until the run reads them
codefile=$pidfile.code # the exit code of the newest run, once it has ended
start_timeout=${START_TIMEOUT:-1800} # seconds; nodes join, environments are checked, programs compile, replay fills
stop_timeout=${STOP_TIMEOUT:-3600} # seconds; a checkpoint of a large replay takes minutes on slow storage

is_running() {
  [[ -s $pidfile ]] && kill -0 "$(cat "$pidfile")" 2>/dev/null
}

running() {
  is_running && echo "a run is under way, as process $(cat "$pidfile")"
}

receive() {
  umask 077
  cat >"$variables"
}

start() {
  if running; then
    rm -f "$variables" # it has others, or none
  else
    : >"$log"
    rm -f "$codefile"
    # Detached, so that the run outlives the connection that started it. On a used working directory it resumes.
    nohup bash "$here/run.sh" train "$workdir" "${names[@]}" >"$log" 2>&1 </dev/null &
    local starter=$!
    while ! is_running && kill -0 "$starter" 2>/dev/null; do sleep 0.1; done
  fi
  await_training
}

# Waits for the first line of `podzero train` that says so. The output also keeps the connection from being closed.
await_training() {
  local began=$SECONDS waited
  until grep -q '^\[[^]]*\] training  ' "$log"; do
    if ! is_running; then
      cat "$log"
      echo "the run ended before training began, see above" >&2
      return 1
    fi
    waited=$((SECONDS - began))
    if ((waited >= start_timeout)); then
      echo "training has not begun within $start_timeout s. The run was left alone and is still starting: $(newest)" >&2
      return 1
    fi
    ((waited % 30)) || echo "waiting for training to begin ($waited of $start_timeout s): $(newest)"
    sleep 1
  done
  echo "training has begun: $(newest)"
}

newest() {
  tail -n 1 "$log"
}

# Waits for the process: unless somebody does, it stays as a zombie when it ends, and `kill -0` finds it alive.
train() {
  # A shell of its own, so that no variable is one of this script. `podzero launch` has sent the experiment's code along.
  # shellcheck disable=SC2016
  PODZERO_TRUST=1 bash -c 'if [[ -e $0 ]]; then source "$0"; rm -f "$0"; fi; exec podzero "$@"' "$variables" \
    train "$here/experiment.yaml" --address 127.0.0.1:6379 --workdir "$workdir" --view plain "${names[@]/#/--env=}" &
  echo $! >"$pidfile"
  local code=0
  wait $! || code=$?
  echo "podzero train ended with code $code"
  echo $code >"$codefile"
  rm -f "$pidfile"
}

# Fails if the run has ended without its last checkpoint, also when it is repeated.
stop() {
  if ! is_running; then
    echo "no run is under way"
    [[ $(exit_code) != 3 ]] || not_saved
    return
  fi
  kill -TERM "$(cat "$pidfile")" 2>/dev/null || true # it may have ended just now
  local began=$SECONDS waited
  while is_running; do
    waited=$((SECONDS - began))
    if ((waited >= stop_timeout)); then
      echo "the run has not ended within $stop_timeout s of being told to; it may still be writing its checkpoint" >&2
      return 1
    fi
    # The output also keeps the connection from being closed as idle.
    ((waited % 30)) || echo "waiting for the run to end, which writes a checkpoint first ($waited of $stop_timeout s)"
    sleep 1
  done
  for _ in {1..20}; do [[ -s $codefile ]] || sleep 1; done # `train` writes it after the end of the process
  case $(exit_code) in
    0 | 129 | 130 | 143) ;; # the end of training, or a signal: both with a checkpoint
    *) not_saved ;;
  esac
}

exit_code() {
  [[ ! -e $codefile ]] || cat "$codefile"
}

not_saved() {
  echo "the run has ended with code $(exit_code), without its last checkpoint; its log says why:" >&2
  tail -n 20 "$log" >&2
  return 1
}

verb=${1:?start, running, receive, status, log or stop}
workdir=${2:-}
names=("${@:3}") # of variables for the run
[[ $verb == running || $verb == receive ]] || : "${workdir:?the working directory}"
case $verb in
  start | running | receive | stop) "$verb" ;;
  train) train ;; # by start alone
  status) podzero status "$workdir" ;;
  log) tail -n 50 -F "$log" ;;
  *) echo "run.sh: expected start, running, receive, status, log or stop, found '$verb'" >&2; exit 2 ;;
esac

#!/usr/bin/env bash
# On the head of a cluster: starts the training run, says how it is doing, or ends it with a savepoint.
# usage: run.sh start|status|log|stop WORKDIR
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
log=${LOGFILE:-/tmp/podzero.log}
number=${PIDFILE:-/tmp/podzero.pid}
patience=900 # seconds for a last savepoint

running() {
  [[ -s $number ]] && kill -0 "$(cat "$number")" 2>/dev/null
}

start() {
  if running; then
    echo "a run is under way here already, as process $(cat "$number"); see: run.sh status $workdir"
    return
  fi
  # Detached, so that the run outlives the connection that started it; the same command resumes one that ended.
  nohup bash "$here/run.sh" attend "$workdir" >"$log" 2>&1 </dev/null &
  sleep "${SETTLE:-5}"
  cat "$log"
  running || { echo "the run ended at once, see above" >&2; return 1; }
}

# The run and its end. Somebody must wait for the process: in a container it might stay a zombie, which looks alive.
attend() {
  podzero train "$here/experiment.yaml" --address 127.0.0.1:6379 --workdir "$workdir" --view plain &
  echo $! >"$number"
  wait $! || echo "podzero train ended with code $?"
  rm -f "$number"
}

stop() {
  running || return 0
  kill -TERM "$(cat "$number")"
  local deadline=$((SECONDS + patience))
  while running; do
    ((SECONDS < deadline)) || { echo "the run has not ended within $patience s" >&2; return 1; }
    sleep 1
  done
}

verb=${1:?start, status, log or stop}
workdir=${2:?the working directory}
case $verb in
  start) start ;;
  status) podzero status "$workdir" ;;
  log) tail -n 50 -F "$log" ;;
  stop) stop ;;
  attend) attend ;; # by start alone
  *) echo "run.sh: unknown word '$verb'" >&2; exit 2 ;;
esac

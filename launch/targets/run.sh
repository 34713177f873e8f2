#!/usr/bin/env bash
# On the head of a cluster: gives the command of a training run, again after a failure that may pass; waits until it
# trains, says how it is doing, or ends it. In every container: Ray's process, and the notice that its end comes.
# usage: run.sh start|job WORKDIR [NAME ...], run.sh await|status|stop WORKDIR, run.sh logs WORKDIR [--follow], run.sh running|notice,
#   run.sh receive <VARIABLES, or run.sh node COMMAND ...
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
log=${LOGFILE:-/tmp/podzero.log}
pidfile=${PIDFILE:-/tmp/podzero.pid}   # of the process that gives the command, as long as it may give it again
variables=${VARIABLES:-/dev/shm/podzero-variables} # those of `podzero launch --env`, in memory as long as the run
notice=${NOTICE:-/tmp/podzero.notice}  # whose change the processes in this container hear (runtime/stopping.py)
codefile=$pidfile.code                 # the exit code of the newest run, once it has ended for good
proc=${PROC:-/proc}                   # the processes of this container
tick=${TICK:-1}                         # seconds between two looks for the end of a process
stopfile=$pidfile.stop                 # there once somebody has ended the run
begun=$pidfile.begun                   # the arguments of the newest `start`
start_timeout=${START_TIMEOUT:-1800} # seconds; nodes join, environments are checked, programs compile, replay fills
stop_timeout=${STOP_TIMEOUT:-3600} # seconds; a checkpoint of a large replay takes minutes on slow storage
most_tries=${MOST_TRIES:-10}       # failures in a row after which the command is not given again
first_pause=${FIRST_PAUSE:-10}     # seconds; doubled by each further failure, up to 600
settled=${SETTLED:-3600}           # seconds; what fails after such a time begins a new row

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
    echo "$workdir ${names[*]}" >"$begun"
    detach
  fi
  await
}

# Begins a run that outlives the connection that asks for it.
detach() {
  : >"$log"
  rm -f "$codefile" "$stopfile"
  nohup bash "$here/run.sh" train "$workdir" "${names[@]}" >"$log" 2>&1 </dev/null &
  local starter=$!
  while ! is_running && kill -0 "$starter" 2>/dev/null; do sleep 0.1; done
}

# Waits for the first line of `podzero train` that says so. The output also keeps the connection from being closed.
await() {
  local began=$SECONDS waited
  until grep -qs '^\[[^]]*\] training  ' "$log"; do
    if [[ -e $codefile ]]; then
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
  tail -n 1 "$log" 2>/dev/null || echo "the run has not been started yet"
}

# Waits for a process that this one has started, and sets its exit `code`. A `wait` for a living process would end with a
# signal, and bash may then wait for ever for one that is gone.
await_end() {
  while kill -0 "$1" 2>/dev/null; do sleep "$tick" || true; done # a signal may end `sleep`
  code=0
  wait "$1" || code=$?
}

# Gives the command, and again after failures that may pass: on a used working directory it resumes. SIGTERM is for the
# run, which writes its last checkpoint.
train() {
  local child='' told='' code tries=0 pause=$first_pause began waited
  rm -f "$codefile" "$stopfile"
  trap 'told=yes; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM
  echo $$ >"$pidfile"
  while true; do
    began=$SECONDS
    # A shell of its own, so that no variable is one of this script. `podzero launch` has sent the experiment's code along.
    # shellcheck disable=SC2016
    PODZERO_TRUST=1 bash -c 'if [[ -e $0 ]]; then source "$0"; fi; exec podzero "$@"' "$variables" \
      train "$here/experiment.yaml" --address 127.0.0.1:6379 --workdir "$workdir" --view plain "${names[@]/#/--env=}" &
    child=$!
    await_end "$child"
    child=''
    echo "podzero train ended with code $code"
    case $code in 0 | 2 | 3 | 129 | 130 | 143) break ;; esac # docs/operations.md: these would not pass
    [[ -z $told && ! -e $stopfile ]] || break
    ((SECONDS - began < settled)) || tries=0 pause=$first_pause
    tries=$((tries + 1))
    if ((tries >= most_tries)); then
      echo "it has failed $tries times in a row, and is not started again"
      break
    fi
    echo "it is started again in $pause s (failure $tries of $most_tries in a row)"
    for ((waited = 0; waited < pause; waited++)); do
      [[ -z $told && ! -e $stopfile ]] || break 2
      sleep 1
    done
    pause=$((pause * 2 < 600 ? pause * 2 : 600))
  done
  [[ ! -w $variables ]] || rm -f "$variables"
  echo "$code" >"$codefile"
  rm -f "$pidfile"
}

# The entrypoint of a job: it succeeds unless the job is to be tried again on other machines.
job() {
  exec > >(trap '' TERM; exec tee "$log") 2>&1 # Ray sends SIGTERM to this one too
  train
  case $(exit_code) in
    0) ;;
    2 | 3) echo "the run would fail again, so this job counts as done" ;;
    *) [[ -e $stopfile ]] || exit "$(exit_code)" ;; # also after a notice: other machines go on
  esac
}

# Fails if the run has ended without its last checkpoint, also when it is repeated.
stop() {
  touch "$stopfile"
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

# This container is about to end: its learner and shard ask for a checkpoint, and its run writes the last one. Returns
# once there is nothing left to save here; whoever ends the container sets the limit.
notice() {
  touch "$notice"
  ! is_running || kill -TERM "$(cat "$pidfile")" 2>/dev/null || true
  while is_running || grep -qsaE '^ray::(Learner|Replay)Process' "$proc"/[0-9]*/cmdline; do sleep 1; done
}

# The first process of a container: Ray, with which the container ends. On the head, a run that was under way when the
# container ended begins again.
node() {
  local ray rest code
  "$@" &
  ray=$!
  trap 'notice; kill -TERM "$ray"' TERM
  if [[ -s $begun && ! -e $codefile ]]; then
    rm -f "$pidfile" # of a process that is gone
    until ray health-check --address 127.0.0.1:6379 2>/dev/null; do
      kill -0 "$ray" || exit 1
      sleep 1
    done
    read -r workdir rest <"$begun"
    read -ra names <<<"$rest"
    detach
  fi
  await_end "$ray"
  exit "$code"
}

verb=${1:?start, job, await, running, receive, status, logs, stop, notice or node}
workdir=${2:-}
names=("${@:3}") # of variables for the run
case $verb in start | job | train | await | status | logs | stop) : "${workdir:?the working directory}" ;; esac
case $verb in
  start | job | await | running | receive | stop | notice) "$verb" ;;
  train) train ;; # by start alone
  node) node "${@:2}" ;;
  status) podzero status "$workdir" ;;
  logs) tail -n 200 ${names:+-F} "$log" ;; # with --follow
  *) echo "run.sh: expected start, job, await, running, receive, status, logs, stop, notice or node, found '$verb'" >&2; exit 2 ;;
esac

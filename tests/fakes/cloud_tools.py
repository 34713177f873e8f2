"""Stand-ins for the programs that a launch calls: each writes down how it was called, some reach a head in a folder."""

from podzero.launch.targets import plan

SITE = plan.Site(
    project="my-project", zone="europe-west4-b", image="europe-west4-docker.pkg.dev/my-project/podzero/podzero:1",
    share="10.0.0.2:/podzero",
)  # fmt: skip
OPTIONS = [
    "stop.minutes=600", "--project", SITE.project, "--zone", SITE.zone, "--image", SITE.image, "--share", SITE.share,
]  # fmt: skip

_AT_HEAD = 'if [[ ${HEAD:-} && $* == *run.sh* ]]; then env -u API_KEY bash -c "${command//$RUN_FILES/$HEAD}"; fi'
"""Runs `command` as the head would, where the variable HEAD names a folder that plays it. API_KEY is not set there."""
_AS_JOB = """if [[ ${HEAD:-} ]] && ! bash "$HEAD/run.sh" running >/dev/null; then
    rm -f "$PIDFILE.code" "$LOGFILE"
    job=$(sed -n 's/^  entrypoint: //p' cluster.yaml)
    env -u API_KEY nohup bash -c "exec ${job//$RUN_FILES/$HEAD}" >"$HEAD/job" 2>&1 </dev/null &
  fi"""
"""Runs the job of a cluster's file as KubeRay would, unless it runs already."""
BODIES = {
    "kubectl": f"""
all="$*"; command=${{all#*-- }}
case " $* " in
  *" get pods "*) echo pod/head ;;
  *" exec "*) {_AT_HEAD} ;;
  *" create secret "*) file=${{all#*variables=}}; cat "${{file%% *}}" ;;
  *" apply --filename - "*) cat >"${{VARIABLES:-/dev/null}}" ;;
  *" apply "*) {_AS_JOB} ;;
esac""",
    "gcloud": f"""
command=${{@: -1}}
case "$*" in
  *"queued-resources describe"*)
    state=$(head -n 1 "$STATES")
    if (($(wc -l < "$STATES") > 1)); then sed -i 1d "$STATES"; fi
    case $state in
      NOT_FOUND) echo "ERROR: (gcloud.compute.tpus) NOT_FOUND: Requested entity was not found." >&2; exit 1 ;;
      UNAVAILABLE) echo "ERROR: (gcloud.compute.tpus) UNAVAILABLE: The service is unavailable." >&2; exit 1 ;;
      *) echo "$state" ;;
    esac ;;
  *"tpu-vm describe"*) echo 10.0.0.9 ;;
  *" scp "*:podzero/variables*) mkdir -p podzero && cp "$5" podzero/variables ;;
  *" ssh "*) {_AT_HEAD} ;;
esac""",
}
"""The shell commands of each stand-in. STATES names a file with the answers to `describe`; its last line stays."""
TRAIN = """
if [[ $1 == train ]]; then
  trap 'until [[ -e $SAVED ]]; do sleep 0.1; done; echo saved; exit ${TRAIN_CODE:-143}' TERM
  echo "[0:05] training  step 1"
  sleep 120 & wait $!
fi"""
"""A `podzero` that trains until SIGTERM, writes its checkpoint until SAVED exists, and ends with TRAIN_CODE."""


def stand_in(folder, tool, body):
    """Puts a program into `folder` that appends its arguments to the file CALLS and then runs `body`."""
    path = folder / tool
    path.write_text(f'#!/usr/bin/env bash\necho "{tool} $*" >> "$CALLS"\n{body}\n')
    path.chmod(0o755)


def calls(tmp_path):
    """What was called since the last time that this was asked, one line a call."""
    path = tmp_path / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def words(target, *more):
    """The arguments of a launch of `target`."""
    return [target, "connect_four", "cluster.slice=v5e-16", "replay.shards=4", *OPTIONS, "--yes", *more]

"""A `podzero train` of a sweep, without Ray: what it does depends on the seed.

fake_sweep_run.py train CONFIG [section.field=value ...] [--env=NAME ...] --workdir DIR --view plain

Seed 0 ends. Seed 1 is killed the first time, and then ends. Seed 2 fails each time. Seed 3 is evaluated while it
trains. Others go on until SIGTERM. It writes the values of the variables to the file `variables`, each backwards.
"""

import os
import signal
import sys
import time

from run_files import evaluation, line

from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.status import RunStatus, write_status

_, config, *overrides, _, root, _, _ = sys.argv[1:]
assert "RAY_ADDRESS" not in os.environ
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
names = [override.removeprefix("--env=") for override in overrides if override.startswith("--env=")]
workdir, experiment = Workdir(root), load(config, [one for one in overrides if not one.startswith("--env=")])
resumed = workdir.is_run
with workdir.lock():
    workdir.open(experiment)
    (workdir.root / "variables").write_text(" ".join(os.environ[name][::-1] for name in names))
    write_status(workdir, RunStatus("fake", "training", 60.0, step=1))
    if experiment.seed == 1 and not resumed:
        os.kill(os.getpid(), signal.SIGKILL)
    if experiment.seed == 2:
        sys.exit("podzero: the learner failed")
    share = experiment.learner.optimizer.learning_rate + experiment.seed / 10
    for second in range(600 if experiment.seed > 3 else 8 if experiment.seed == 3 else 0):
        write_status(workdir, RunStatus("fake", "training", 10.0 * second, step=1, keeps_value=share))
        time.sleep(1)
    lines = [line("learner", 1, 1, learner__loss=2.0), evaluation(60, 2, keeps_value=share)]
    workdir.metrics_file.write_bytes(b"\n".join([*lines, b""]))
    write_status(workdir, RunStatus("fake", "ended", 120.0, step=2, keeps_value=share))

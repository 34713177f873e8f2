"""A `podzero train` without Ray: writes a run's files and behaves as the environment variable FAKE_TRAIN says.

fake_train.py train CONFIG [section.field=value ...] --workdir DIR --view plain
"""

import os
import signal
import sys
import time

from run_files import line

from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.status import RunStatus, write_status

BEHAVIOUR = os.environ["FAKE_TRAIN"]
_, config, *overrides, _, root, _, _ = sys.argv[1:]
if BEHAVIOUR == "refuses":
    sys.exit("podzero: the solver is not installed")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
workdir, experiment = Workdir(root), load(config, overrides)
with workdir.lock():
    workdir.open(experiment)
    time.sleep(0.3)  # so that nothing is there yet when the handle is given
    first = [line("learner", 1, 1, learner__loss=2.0), line("actor-0", 1, 1, count__games=3.0), b"damaged"]
    workdir.metrics_file.write_bytes(b"\n".join([*first, b""]))
    write_status(workdir, RunStatus("fake", "training", 1.0, step=1))
    if BEHAVIOUR == "hangs":
        time.sleep(60)
    # As a resumption from step 1 does.
    replaced = workdir.metrics_file.with_name("replaced")
    replaced.write_bytes(b"\n".join([*first, line("learner", 2, 2, learner__loss=1.0), b""]))
    replaced.replace(workdir.metrics_file)
    write_status(workdir, RunStatus("fake", "ended", 2.0, step=2))
    if BEHAVIOUR == "fails":
        sys.exit("podzero: the learner failed\nResume with: podzero train")
    if BEHAVIOUR == "dies":
        os.kill(os.getpid(), signal.SIGKILL)

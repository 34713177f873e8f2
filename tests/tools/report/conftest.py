"""Working directories with the files of a run, without a run."""

import pytest

from podzero.config import load
from podzero.files.storage import sealed
from podzero.files.workdir import Workdir, step_folder
from podzero.runtime.monitoring.status import RunStatus, write_status


@pytest.fixture
def make_run(tmp_path):
    """Writes a working directory: experiment, status, metrics, ladder, log."""

    def make(lines=(), *, config="connect_four", overrides=(), status=True, ladder=None, log="", folder="run"):
        workdir = Workdir(tmp_path / folder)
        workdir.open(load(config, overrides))
        if lines:
            workdir.metrics_file.write_bytes(b"".join(one + b"\n" for one in lines))
        if status:
            write_status(workdir, RunStatus(config, "ended", 600.0, step=60, games=600, loss=2.0, restarts=2))
        if ladder is not None:
            checkpoint = step_folder(workdir.checkpoints, 60)
            checkpoint.mkdir(parents=True)
            (checkpoint / "run.json").write_text(sealed({"counters": {}, "ladder": ladder, "samples": []}))
        if log:
            workdir.log_file.write_text(log)
        return workdir

    return make

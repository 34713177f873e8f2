import os
import subprocess
import sys
from pathlib import Path

import pytest

from podzero.core.machine import choose_platform, keep_compiled_programs, prepare_jax

PODZERO = Path(sys.executable).with_name("podzero")
MEANINGS = {
    "JAX_ENABLE_X64": "1",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_LEGACY_PRNG_KEY": "error",
    "JAX_TRANSFER_GUARD": "disallow",
}


@pytest.mark.parametrize(
    ("device", "chosen"),
    [
        (None, {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}),
        ("accel0", {}),
        ("vfio", {}),
        ("nvidia0", {"TPU_SKIP_MDS_QUERY": "1"}),
        ("kfd", {"TPU_SKIP_MDS_QUERY": "1"}),
    ],
)
def test_cpu_is_chosen_only_without_accelerators(tmp_path, device, chosen):
    if device is not None:
        (tmp_path / device).touch()
    environment = {}
    choose_platform(tmp_path, environment)
    assert environment == chosen


def test_the_choice_of_the_user_is_kept(tmp_path):
    environment = {"JAX_PLATFORMS": "tpu"}
    choose_platform(tmp_path, environment)
    assert environment["JAX_PLATFORMS"] == "tpu"


def test_compiled_programs_are_kept_where_users_keep_caches_by_kind_of_cpu(tmp_path):
    folders = []
    for flags in ("flags\t\t: fpu avx2", "flags\t\t: fpu avx512f", "Features\t: asimd"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
        environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        keep_compiled_programs(environment, tmp_path / "cpuinfo")
        folders.append(Path(environment["JAX_COMPILATION_CACHE_DIR"]))
    assert {folder.parent for folder in folders} == {tmp_path / "cache" / "podzero" / "xla"}
    assert len(set(folders)) == 3


def test_the_users_own_cache_is_kept(tmp_path):
    environment = {"JAX_COMPILATION_CACHE_DIR": "/mine"}
    keep_compiled_programs(environment, tmp_path / "none")
    assert environment == {"JAX_COMPILATION_CACHE_DIR": "/mine"}


def test_an_unknown_cpu_keeps_nothing(tmp_path):
    environment = {}
    keep_compiled_programs(environment, tmp_path / "none")
    assert environment == {}


def test_switches_that_change_what_programs_mean_are_for_other_projects(monkeypatch):
    for name, value in MEANINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAX_DEBUG_NANS", "1")
    prepare_jax()
    assert not MEANINGS.keys() & os.environ.keys()
    assert os.environ["JAX_DEBUG_NANS"] == "1"  # whoever looks for a fault keeps the tools for it


class Jax:
    """Plays `jax.config`."""

    def __init__(self, jax_platforms):
        self.config, self.jax_platforms = self, jax_platforms

    def update(self, name, value):
        setattr(self, name, value)


@pytest.mark.parametrize(("before", "after"), [(None, "cpu"), ("tpu", "tpu")])
def test_a_program_that_imported_jax_before_podzero_gets_the_platform_too(tmp_path, monkeypatch, before, after):
    monkeypatch.setitem(sys.modules, "jax", Jax(before))
    choose_platform(tmp_path, {})
    assert sys.modules["jax"].jax_platforms == after


@pytest.mark.slow
@pytest.mark.parametrize("program", ["import jax, podzero; podzero.load", "import podzero; podzero.load; import jax"])
def test_a_program_prints_nothing_about_an_accelerator_that_is_not_there(program):
    given = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; jax.devices()"], env=given, capture_output=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.slow
def test_no_variable_of_another_project_changes_an_agent():
    command = ["evaluate", "zoo:tic_tac_toe", "--opponent", "zoo:tic_tac_toe", "--games", "4", "--json"]
    said = [
        subprocess.run([PODZERO, *command], env=os.environ | more, capture_output=True, check=True).stdout
        for more in ({}, MEANINGS)
    ]
    assert said[0] == said[1]

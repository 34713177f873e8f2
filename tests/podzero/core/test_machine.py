import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from podzero.core.machine import (
    NoAccelerator,
    choose_platform,
    has_bfloat16_instructions,
    has_int8_instructions,
    keep_compiled_programs,
    nvidia_driver,
    prepare_jax,
    start_cudnn,
    use_graphs,
)

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


OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)  Sun Jul 27
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"


@pytest.mark.parametrize(
    ("device", "version", "platforms", "driver"),
    [
        ("nvidia0", OPEN, None, "580.65.06"),
        ("nvidia0", PROPRIETARY, "cuda,cpu", "535.104.05"),
        ("nvidia0", "another file", "gpu", ""),
        ("dxg", None, "", ""),
        ("nvidia0", OPEN, "cpu", None),
        ("nvidia0", OPEN, "tpu,cpu", None),
        ("kfd", None, None, None),
        ("accel0", None, None, None),
        (None, OPEN, None, None),
    ],
)
def test_the_driver_is_that_of_nvidia_gpus_that_jax_may_use(tmp_path, device, version, platforms, driver):
    file = tmp_path / "proc/driver/nvidia/version"
    (tmp_path / "dev").mkdir()
    if device is not None:
        (tmp_path / "dev" / device).touch()
    if version is not None:
        file.parent.mkdir(parents=True)
        file.write_text(version)
    assert nvidia_driver(tmp_path, {} if platforms is None else {"JAX_PLATFORMS": platforms}) == driver


GRAPHS = "--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE"


@pytest.mark.parametrize(
    ("driver", "before", "after"),
    [
        ("580.65.06", None, GRAPHS),
        ("", "--xla_dump_to=/d", f"--xla_dump_to=/d {GRAPHS}"),
        ("595.1", "--xla_gpu_enable_command_buffer=", "--xla_gpu_enable_command_buffer="),
        ("535.104.05", "--xla_dump_to=/d", "--xla_dump_to=/d"),
        (None, None, None),
    ],
)
def test_graphs_are_for_gpus_whose_driver_has_them_unless_the_user_says_which(driver, before, after, caplog):
    environment = {} if before is None else {"XLA_FLAGS": before}
    use_graphs(driver, environment)
    use_graphs(driver, environment)  # a process that starts another
    assert environment.get("XLA_FLAGS") == after
    assert ("535.104.05" in caplog.text and "580" in caplog.text) == (driver == "535.104.05")


def test_jaxlib_of_cpus_knows_the_flag_that_its_processes_may_inherit():
    program = "import jax; jax.jit(lambda: 1.0)()"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": GRAPHS}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


def test_a_convolution_runs_on_each_gpu_before_the_programs_of_the_cache(monkeypatch):
    """On the CPU's devices, which JAX calls GPUs here."""
    convolve, made = jax.lax.conv_general_dilated, []
    monkeypatch.setattr("jax.lax.conv_general_dilated", lambda *a, **b: made.append(convolve(*a, **b)) or made[-1])
    start_cudnn(None)
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    start_cudnn("")
    assert made == []
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    start_cudnn("580.65.06")
    assert {device for each in made for device in each.devices()} == set(jax.local_devices())


@pytest.mark.parametrize("fault", ["jax.default_backend", "jax.lax.conv_general_dilated"])
def test_a_gpu_that_cannot_be_used_is_told_with_its_driver_and_what_it_needs(monkeypatch, fault):
    def fail(*_, **__):
        raise jax.errors.JaxRuntimeError("FAILED_PRECONDITION: DNN library initialization failed")

    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr(fault, fail)
    with pytest.raises(NoAccelerator, match=r"535\.104.*DNN library.*580"):
        start_cudnn("535.104")


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


@pytest.mark.parametrize(
    ("flags", "int8", "bfloat16"),
    [
        ("fpu avx2 avx512_vnni", True, False),
        ("fpu avx_vnni", True, False),
        ("fpu avx2 avx512f", False, False),
        ("xavx_vnni2 xamx_bf16", False, False),
        ("fpu avx512_bf16 avx512_vnni", True, True),
        ("fpu amx_bf16", False, True),
    ],
)
def test_the_flags_of_the_cpu_decide(tmp_path, flags, int8, bfloat16):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert has_int8_instructions(file) is int8
    assert has_bfloat16_instructions(file) is bfloat16


def test_a_machine_that_lists_no_flags_has_none(tmp_path):
    assert not has_int8_instructions(tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("Features : asimd\n")
    assert not has_int8_instructions(tmp_path / "cpuinfo")
    assert not has_bfloat16_instructions(tmp_path / "cpuinfo")

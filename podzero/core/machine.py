"""A process on its machine: CPUs, GPUs, JAX's platforms, its cache of programs, the folders of the user, Ctrl-C."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from podzero.core.errors import PodzeroError

log = logging.getLogger(__name__)

_TPU = ("accel*", "vfio")
_NVIDIA = ("nvidia*", "dxg")
_GPU = (*_NVIDIA, "kfd")
"""Device files of NVIDIA GPUs, GPUs in the Windows Subsystem for Linux, and AMD GPUs."""
_DRIVER = 580
"""Oldest NVIDIA driver for CUDA 13, which JAX's plugin uses (https://docs.jax.dev/en/latest/installation.html)."""
_GRAPHS = "--xla_gpu_enable_command_buffer"
"""XLA's flag for what CUDA graphs record; by default neither convolutions nor loops."""
_MEANINGS = (
    "JAX_ENABLE_X64", "JAX_EXPLICIT_X64_DTYPES", "JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION",
    "JAX_DEFAULT_PRNG_IMPL", "JAX_ENABLE_CUSTOM_PRNG", "JAX_LEGACY_PRNG_KEY", "JAX_TRANSFER_GUARD",
    "JAX_TRANSFER_GUARD_HOST_TO_DEVICE", "JAX_TRANSFER_GUARD_DEVICE_TO_DEVICE", "JAX_TRANSFER_GUARD_DEVICE_TO_HOST",
)  # fmt: skip
"""Variables that change what JAX's functions compute or refuse: podzero's programs are written for the defaults."""
_CACHE_BYTES = 2**30
"""Size of the cache; JAX deletes the least recently used programs."""
CPUINFO = Path("/proc/cpuinfo")
"""Where Linux lists the instructions of each CPU."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as in shells."""


def usable_cpus() -> int:
    """The number of CPUs that this process may use, which in a container may be fewer than the machine has."""
    # Only Linux says it.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_jax() -> None:
    """Prepares a process of podzero's own, before it imports JAX: chooses its platform and undoes `_MEANINGS`."""
    for name in _MEANINGS:
        os.environ.pop(name, None)
    choose_platform()


def choose_platform(devices: Path = Path("/dev"), environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets JAX_PLATFORMS=cpu on machines without TPUs and GPUs, unless the user has set it."""
    if any(path for pattern in _TPU for path in devices.glob(pattern)):
        return
    # With libtpu installed, as `podzero compile` needs it, JAX would look for TPUs on any machine: libtpu prints errors
    # and queries Google's metadata server, for minutes if it cannot be reached.
    environment.setdefault("TPU_SKIP_MDS_QUERY", "1")
    if not any(path for pattern in _GPU for path in devices.glob(pattern)):
        environment.setdefault("JAX_PLATFORMS", "cpu")
        # A notebook may have imported JAX before podzero: JAX has read its variables then, but not chosen a platform.
        if (jax := sys.modules.get("jax")) is not None and not jax.config.jax_platforms:
            jax.config.update("jax_platforms", environment["JAX_PLATFORMS"])


class NoAccelerator(PodzeroError, RuntimeError):
    """JAX does not find the accelerators that a process has reserved, or cannot use them."""


def nvidia_driver(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> str | None:
    """The version of the NVIDIA driver, such as `580.65.06`; empty if unknown, None if JAX may not use such a GPU."""
    platforms = (environment.get("JAX_PLATFORMS") or "cuda").split(",")
    if {"cuda", "gpu"}.isdisjoint(platforms) or not any(path for name in _NVIDIA for path in (root / "dev").glob(name)):
        return None
    version = root / "proc/driver/nvidia/version"
    said = version.read_text(encoding="utf-8") if version.exists() else ""
    found = re.search(r"^NVRM version:.*?\s(\d+(\.\d+)+)\s", said, re.MULTILINE)
    return found[1] if found else ""


def use_graphs(driver: str | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes XLA record convolutions and loops into CUDA graphs, before JAX's first program; `driver`: `nvidia_driver`.

    Nothing changes without a driver, if it is too old, or if XLA_FLAGS say already what graphs record.
    """
    flags = environment.get("XLA_FLAGS", "")
    if driver is None or _GRAPHS in flags:
        return
    if driver and int(driver.partition(".")[0]) < _DRIVER:
        log.warning("the NVIDIA driver is %s, CUDA 13 needs %d: update it; until then, no CUDA graphs", driver, _DRIVER)
    else:
        environment["XLA_FLAGS"] = f"{flags} {_GRAPHS}=+CONVOLUTION,+WHILE".strip()


def start_cudnn(driver: str | None) -> None:
    """Runs a convolution on each NVIDIA GPU of this process, before any other program; or raises `NoAccelerator`.

    XLA starts cuDNN at the first convolution, and fails ("No DNN support for stream") if a CUDA graph records that, as
    of a program from the compilation cache: one that is compiled tries convolutions. XLA makes no graph of one alone.
    """
    if driver is None:
        return
    import jax  # `use_graphs` is called before JAX is imported

    try:
        gpus = jax.local_devices() if jax.default_backend() == "gpu" else []  # without its plugin, JAX warns
        for device, dtype in product(gpus, ("float32", "bfloat16")):
            image, kernel = (jax.numpy.ones(shape, dtype, device=device) for shape in ((8, 8, 8, 32), (3, 3, 32, 32)))
            layout = ("NHWC", "HWIO", "NHWC")  # in others XLA would add transpositions
            jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=layout).block_until_ready()
    except RuntimeError as error:
        raise NoAccelerator(
            f"the GPU cannot be used, with the NVIDIA driver {driver or 'of unknown version'}: {error}. CUDA 13 needs "
            f"driver {_DRIVER} or newer, and cuDNN memory that no other process holds; JAX_PLATFORMS=cpu does without"
        ) from error


def keep_compiled_programs(environment: MutableMapping[str, str] = os.environ, cpus: Path = CPUINFO) -> None:
    """Makes JAX keep compiled programs in the user's cache folder, unless the user has set another one."""
    if "JAX_COMPILATION_CACHE_DIR" in environment or (kind := cpu_kind(cpus)) is None:
        return
    folder = user_cache(environment) / "xla" / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        # JAX would warn of each program. A user without a home compiles anew each time.
        return
    environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    environment.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_CACHE_BYTES))
    # By default JAX keeps only what took a second to compile, which most programs of small networks do not.
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """In this context Ctrl-C ends the process at once, without cleanup: for imports.

    A KeyboardInterrupt inside the import of an extension is lost or becomes another error, and jaxlib's aborts.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def cpu_kind(cpus: Path = CPUINFO) -> str | None:
    """A name for CPUs with the instructions of this machine's, given by the file `cpus`; None if it is not Linux.

    A program compiled for one kind of CPU may fail on another, and machines may share a home directory.
    """
    instructions = _instructions(cpus)
    return None if instructions is None else hashlib.sha256(instructions.encode()).hexdigest()[:12]


def has_int8_instructions(cpus: Path = CPUINFO) -> bool:
    """Whether the CPU computes in int8 (VNNI, AMX); False if it is not Linux."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint((_instructions(cpus) or "").split())


def has_bfloat16_instructions(cpus: Path = CPUINFO) -> bool:
    """Whether the CPU computes in bfloat16; False if it is not Linux."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint((_instructions(cpus) or "").split())


def _instructions(cpus: Path) -> str | None:
    """The line of the file `cpus` that lists the instructions, empty if none does; None if it is not Linux."""
    try:
        found = re.search(r"^(flags|Features)\s*:.*$", cpus.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[0] if found else ""


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/podzero`, else `~/.cache/podzero`; it may not exist yet."""
    # `or`, because by the XDG specification an empty value counts as unset.
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podzero"


def user_config(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CONFIG_HOME/podzero`, else `~/.config/podzero`; it may not exist yet."""
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "podzero"

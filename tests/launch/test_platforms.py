from pathlib import Path

import pytest

from podzero.launch.platforms import choose_platform, keep_compiled_programs


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

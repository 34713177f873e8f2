import pytest

from podzero.launch.platforms import choose_platform


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

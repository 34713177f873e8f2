"""`import podzero` costs nothing and still gives the names of its API."""

import subprocess
import sys

import pytest

import podzero
from podzero.core.errors import ConfigError


def run(code):
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_podzero_imports_nothing_but_small_modules_of_its_own():
    run(
        "import sys; before = set(sys.modules); import podzero; dir(podzero)\n"
        "libraries = {name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "assert libraries == {'podzero'}, libraries\n"
        "own = {name for name in sys.modules if name.startswith('podzero.')}\n"
        "assert own == {'podzero.core', 'podzero.core.errors'}, own"
    )


def test_metrics_are_read_without_jax_and_tensorflow():
    run(
        "import sys, podzero; podzero.metrics('zoo:go_9x9')\n"
        "heavy = {'jax', 'tensorflow', 'reverb', 'ray', 'orbax'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )


def test_agents_are_loaded_without_tensorflow_and_ray():
    run(
        "import sys, podzero; podzero.load\n"
        "heavy = {'tensorflow', 'reverb', 'ray', 'nicegui'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )


@pytest.mark.parametrize("name", ["load", "metrics", "board", "train", "Agent", "PodzeroError"])
def test_the_names_of_the_api_are_listed_and_documented(name):
    assert name in dir(podzero)
    assert getattr(podzero, name).__doc__


def test_packages_and_unknown_names_are_found_as_in_any_package():
    from podzero import envs

    assert envs.__name__ == "podzero.envs"
    with pytest.raises(AttributeError, match=r"'podzero' .*attribute 'loda'"):
        podzero.loda  # noqa: B018
    assert issubclass(ConfigError, podzero.PodzeroError)

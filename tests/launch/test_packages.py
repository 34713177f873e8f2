"""Packages of one's own for the nodes of a run: those that this machine has too."""

from importlib.metadata import version

import pytest

from podzero.core.errors import ConfigError
from podzero.launch.train import pinned
from podzero.runtime import train as runtime

MCTX = version("mctx")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("mctx", f"mctx=={MCTX}"),
        (f"mctx=={MCTX}", f"mctx=={MCTX}"),
        ("gymnasium[classic-control, box2d] >= 1.0", f"gymnasium[box2d,classic-control]=={version('gymnasium')}"),
        ("mctx @ git+https://host.example/mctx", "mctx @ git+https://host.example/mctx"),
    ],
)
def test_nodes_get_the_version_of_this_machine(given, sent):
    assert pinned(given, joins=True, installs=True) == sent


@pytest.mark.parametrize(
    ("given", "joins", "installs", "message"),
    [
        ("mctx", False, True, "one machine"),
        ("mctx", True, False, r"cluster\.install_environment=true"),
        ("no-such-package>=1", True, True, "uv pip install 'no-such-package>=1'"),
        ("mctx<0.0.1", True, True, f"version {MCTX}"),
        ("mctx @ https://me:s3cret@host.example/mctx", True, True, r"^--with mctx: .*password"),
        ("mctx @ git+https://t0ken@host.example/mctx", True, True, r"^--with mctx: .*netrc"),
        ("./mctx", True, True, r"such as pettingzoo==1\.25"),
        ("--index-url=http://host.example", True, True, "expected a requirement"),
    ],
)
def test_what_cannot_be_installed_on_nodes_is_refused(given, joins, installs, message):
    with pytest.raises(ConfigError, match=message):
        pinned(given, joins, installs)


def test_the_command_gives_them_to_the_run(command, tmp_path, monkeypatch):
    def ran(*arguments):
        ran.packages = arguments[-1]
        return runtime.End("2 steps", 0)

    monkeypatch.setattr(runtime, "train", ran)
    arguments = ("train", "tic_tac_toe", "--with", "mctx", "--with", "optax", "--workdir", str(tmp_path / "run"))
    code, _, error = command(*arguments)
    assert code == 2
    assert "--with mctx" in error
    code, _, error = command(*arguments, "--address", "10.0.0.1:6379", "cluster.install_environment=true")
    assert code == 0, error
    assert ran.packages == (f"mctx=={MCTX}", f"optax=={version('optax')}")

"""The image: its sources exist, its versions are pinned, and it holds nothing private."""

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from podzero.launch.targets.plan import HERE

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (HERE / "Dockerfile").read_text()
LINES = re.sub(r"\\\n\s*", " ", DOCKERFILE).splitlines()


def instructions(name):
    return [line.split(maxsplit=1)[1] for line in LINES if line.startswith(f"{name} ")]


def included():
    """The names at the top of the checkout that the build sees."""
    patterns = [
        line.removeprefix("!")
        for line in (HERE / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    return {path.name for path in ROOT.iterdir() if any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)}


def test_it_is_the_python_of_the_repository_beside_the_one_that_reverb_needs():
    assert instructions("FROM") == ["python:3.11-slim-bookworm AS replay-server", "python:3.13-slim-bookworm"]
    assert (ROOT / ".python-version").read_text().strip() == "3.13"
    server = tomllib.loads((ROOT / "replay/reverb_server/pyproject.toml").read_text())
    assert server["project"]["requires-python"] == "==3.11.*"


def test_the_environment_of_the_replay_server_is_in_the_image_and_named():
    (named,) = [line for line in instructions("ENV") if line.startswith("PODZERO_REPLAY_PYTHON=")]
    folder = named.removeprefix("PODZERO_REPLAY_PYTHON=").removesuffix("/bin/python")
    assert any(line.split()[-1] == folder for line in instructions("COPY") if "--from=replay-server" in line)


def test_what_it_copies_is_in_the_checkout_and_included_in_the_build():
    copied = [source for line in instructions("COPY") if "--from" not in line for source in line.split()[:-1]]
    assert {"pyproject.toml", "uv.lock", "."} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists()
        assert source == "." or source.split("/")[0] in included()


def test_the_image_holds_every_package_and_nothing_else():
    links = {path.name for path in (ROOT / "podzero").iterdir() if path.is_symlink()}
    assert included() == links - {"benchmarks"} | {"podzero", "pyproject.toml", "uv.lock", "README.md", "LICENSE"}
    assert "*" in (HERE / "Dockerfile.dockerignore").read_text().splitlines()


def test_it_installs_what_the_lock_file_says_with_the_extras_that_exist():
    syncs = [line for line in instructions("RUN") if "uv sync" in line and "replay-server" not in line]
    project = (ROOT / "pyproject.toml").read_text()
    (extras,) = [line.removeprefix("EXTRAS=").strip('"').split() for line in instructions("ARG") if "EXTRAS" in line]
    assert syncs
    assert all("--locked" in line and "$EXTRAS" in line for line in syncs)
    assert "tpu" in extras
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    assert "--no-editable" in syncs[-1]


def test_the_extras_in_readme_are_those_that_what_it_shows_needs():
    """Pages, int8, environments and exported networks, in each way of installing; libtpu is for machines with TPUs."""
    readme = (ROOT / "README.md").read_text()
    checkout = set(re.findall(r"--extra (\w+)", re.search(r"uv sync --inexact (.*)", readme)[1]))
    by_pip = set(re.search(r'pip install "\.\[([\w,]+)\]"', readme)[1].split(","))
    image = set(re.search(r'--build-arg EXTRAS="([\w ]+)"', readme)[1].split())
    assert by_pip == image == checkout == {"web", "openvino", "envs", "export"}


def test_it_holds_what_its_callers_need_and_no_secret():
    (packages,) = [line for line in instructions("RUN") if "apt-get install" in line]
    assert "wget" in packages.split()
    assert "RAY_AUTH_MODE=token" in DOCKERFILE
    assert not re.search(r"(?i)(auth_token|password|secret|credential)\S*=", DOCKERFILE)


def test_the_cloud_build_builds_that_file():
    build = yaml.safe_load((HERE / "cloudbuild.yaml").read_text())
    (step,) = build["steps"]
    arguments = step["args"]
    assert ROOT / arguments[arguments.index("--file") + 1] == ROOT / "launch/targets/Dockerfile"
    assert build["images"] == [arguments[arguments.index("--tag") + 1]]
    assert arguments[arguments.index("--build-arg") + 1] == "PACKAGES=$_PACKAGES"
    assert build["substitutions"] == {"_PACKAGES": ""}


@pytest.mark.parametrize(
    ("packages", "installed"), [("", []), ("a>=1 b[c]==2", ["--python", "/usr/local/bin/python", "a>=1", "b[c]==2"])]
)
def test_packages_of_ones_own_come_after_those_of_the_lock_file(tmp_path, packages, installed):
    *_, last = runs = [line for line in instructions("RUN") if "uv " in line]
    assert "uv pip install" in last
    assert "uv pip" not in "".join(runs[:-1])
    (tmp_path / "uv").write_text('#!/bin/sh\nshift 2; printf "%s\\n" "$@"\n')
    (tmp_path / "uv").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PACKAGES": packages}
    done = subprocess.run(["sh", "-c", last], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == installed

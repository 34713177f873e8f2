"""What people get who install podzero: every package, nothing else."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GROUND = ("core", "config", "files")
PACKAGES = (
    "actors", "configs", "envs", "evaluation", "inference", "launch", "learner", "networks", "replay", "runtime",
    "search", "tools",
)  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the source tree, links and all, as builds leave traces in theirs."""
    copy = tmp_path_factory.mktemp("source") / "podzero"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "*.pyc")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return build(source, "--wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    return build(source, "--sdist", tmp_path_factory.mktemp("sdist"))


def build(source, kind, to):
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(to), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = to.iterdir()
    return built


def expected():
    """Every file of the package, as it must lie in site-packages."""
    here = ROOT / "podzero"
    ground = [path for package in GROUND for path in (here / package).glob("*.py")]
    own = [*here.glob("*"), *ground, *(here / "zoo").rglob("*")]
    modules = {path.relative_to(ROOT).as_posix() for path in own if path.is_file()}
    packages = {
        f"podzero/{path.relative_to(ROOT).as_posix()}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if (
            path.suffix in {".py", ".pyi", ".proto", ".yaml", ".sh", ".html", ".css", ".js", ".npz", ".LICENSE"}
            or path.name.startswith("Dockerfile")
            or path.parent.name == "reverb_server"
            or path.name == "slices.json"
        )
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    }
    return modules | packages


def test_the_wheel_holds_every_file_of_every_package_and_only_podzero(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert package == expected()
    assert {name.split("/")[0] for name in package} == {"podzero"}
    assert {"podzero/py.typed", "podzero/configs/connect_four.yaml", "podzero/launch/cli.py"} <= package


def test_the_wheel_carries_licence_entry_point_and_python_version(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name.split("/", 1)[1]: archive.read(name).decode() for name in archive.namelist() if "dist-info" in name
        }
    assert "podzero = podzero.launch.main:main" in texts["entry_points.txt"]
    assert "Apache License" in texts["licenses/LICENSE"]
    assert "Requires-Python: <3.14,>=3.12" in texts["METADATA"]


def test_the_source_distribution_holds_what_a_build_needs_and_no_tests(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert expected() <= names
    assert "pyproject.toml" in names
    assert not any(name.startswith("tests/") for name in names)


def test_a_wheel_built_from_the_source_distribution_is_the_same(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again = build(unpacked, "--wheel", tmp_path / "out")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {i.filename: i.CRC for i in one.infolist() if "RECORD" not in i.filename} == {
            i.filename: i.CRC for i in other.infolist() if "RECORD" not in i.filename
        }


def test_the_wheel_runs_where_no_source_is(wheel, tmp_path):
    """Unpacked beside this environment's libraries, but away from the source tree."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = (
        "import sys; sys.argv = ['podzero', 'configs', '--json']; import podzero\n"
        f"assert podzero.__file__.startswith({str(tmp_path)!r}), podzero.__file__\n"
        "from podzero.launch.cli import main; main()"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout

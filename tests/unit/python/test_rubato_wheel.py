"""The wheel, of the library of this build: what it asks of a machine; it trains where nothing else of Rubato is."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SIZE_MAX = 10e6  # bytes; 3.9 MB when this was written
LIMIT_S = 60
FUNCTIONS = {f"rubato_{name}" for name in ("error", "leave", "next", "reply", "start", "stop", "version")}

pytestmark = pytest.mark.skipif("RUBATO_BUILD" not in os.environ, reason="RUBATO_BUILD names no build folder")


def run(*words, **kwargs):
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    library = pathlib.Path(os.environ["RUBATO_BUILD"]) / "lib" / "librubato_pytorch.so"
    run(sys.executable, ROOT / "python/build_wheel.py", "--library", library, folder)
    [made] = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Runs a fresh virtual environment's Python, outside of this repository; the wheel is all that it has."""
    folder = tmp_path_factory.mktemp("elsewhere")
    interpreter = folder / "venv/bin/python"
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "--no-index", wheel)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def run_python(*words):
        return run(interpreter, *words, cwd=folder, env=environment)

    return run_python


def test_wheel_holds_the_package_its_library_and_their_licences(wheel):
    version = re.search(r"^project\(rubato VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
    assert wheel.name == f"rubato-{version}-py3-none-manylinux_2_34_x86_64.whl"
    assert wheel.stat().st_size < SIZE_MAX
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"rubato/{path.name}" for path in (ROOT / "python/rubato").glob("*.py")}
    assert {name for name in names if name.startswith("rubato/")} == modules | {"rubato/librubato_pytorch.so"}
    assert f"rubato-{version}.dist-info/licenses/libssl-dev" in names


def test_library_asks_for_glibc_alone_and_shows_its_functions_alone(wheel, tmp_path):
    library = zipfile.ZipFile(wheel).extract("rubato/librubato_pytorch.so", tmp_path)
    loaded = {line.split()[0] for line in run("ldd", library).splitlines()}
    assert {name for name in loaded if not name.startswith(("/lib64/ld-linux-x86-64.so", "linux-vdso"))} == {
        "libc.so.6", "libgcc_s.so.1", "libm.so.6"}
    symbols = run("objdump", "-T", library).splitlines()
    assert {line.split()[-1] for line in symbols if " g " in line} == FUNCTIONS
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", "\n".join(symbols))}
    assert max(versions) <= (2, 34)


def test_package_can_be_imported_where_there_is_no_torch(python):
    said = python("-c", "import importlib.util as found, rubato.engine as engine\n"
                  "print(found.find_spec('torch'), engine._load().rubato_version().decode(), engine.VERSION)")
    torch, _, library, package = said.split()
    assert (torch, library) == ("None", package)


def test_package_refuses_the_library_of_another_version(python):
    said = python("-c", "import rubato.engine as engine\nengine.VERSION = '9.9.9'\n"
                  "try: engine._load()\nexcept ImportError as error: print(error)")
    assert said.startswith("This is the Python package of rubato 9.9.9, but /") and "is that of rubato 0." in said


def test_example_trains_with_nothing_but_the_wheel_and_torch(python, tmp_path):
    [site] = python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").split()
    pathlib.Path(site, "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (tmp_path / "text").write_text("In the beginning was the Word, and the Word was with God. " * 400)
    said = python(ROOT / "examples/pytorch/kjv.py", tmp_path / "text", "5", tmp_path / "states")
    assert re.findall(r"^step (\d+): loss \d", said, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert len(list((tmp_path / "states").rglob("model.safetensors"))) == 1

#!/usr/bin/env python3
"""Makes the wheel of the package `rubato`, for any Python from 3.11 on: python/rubato, and the engine's library in it.

    python/build_wheel.py [--library FILE] [FOLDER]

FILE is a librubato_pytorch.so (that of RUBATO_LIBRARY, or else of build/release), and FOLDER build/wheel. Needs Python
and binutils, and no package index. pyproject.toml names this as its backend, so that `pip install ./python` works, too.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import tempfile
import tomllib
import zipfile

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
TAG = "py3-none-manylinux_2_34_x86_64"
# Debian packages whose code is in the library, and whose licences want to be told (Boost's does not).
INSIDE = ["libfmt-dev", "libprotobuf-dev", "libssl-dev", "libstdc++-12-dev", "nlohmann-json3-dev"]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None, library=None):
    """Its file name. The hook of PEP 517, and more."""
    built = ROOT / "build/release/lib/librubato_pytorch.so"
    library = pathlib.Path(library or os.environ.get("RUBATO_LIBRARY") or built)
    if not library.exists():
        raise SystemExit(f"build_wheel: {library} is not built: make release")
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    version = re.search(r'^VERSION = "(.+?)"', (HERE / "rubato/version.py").read_text(), re.MULTILINE)[1]
    info = f"rubato-{version}.dist-info"
    files = {f"rubato/{path.name}": path.read_bytes() for path in sorted((HERE / "rubato").glob("*.py"))}
    files["rubato/librubato_pytorch.so"] = stripped(library)
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    for package in INSIDE:
        files[f"{info}/licenses/{package}"] = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_bytes()
    files[f"{info}/METADATA"] = text("Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}",
                                     f"Summary: {project['description']}", f"License: {project['license']['text']}",
                                     f"Requires-Python: {project['requires-python']}")
    files[f"{info}/WHEEL"] = text("Wheel-Version: 1.0", "Generator: build_wheel", "Root-Is-Purelib: false",
                                  f"Tag: {TAG}")
    record = f"{info}/RECORD"
    files[record] = text(*(f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()), f"{record},,")

    name = f"rubato-{version}-{TAG}.whl"
    pathlib.Path(wheel_directory).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():  # the same bytes from the same files, whenever it runs
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)
    return name


def stripped(library):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["strip", "-o", out.name, library], check=True)
        return pathlib.Path(out.name).read_bytes()


def text(*lines):
    return "".join(f"{line}\n" for line in lines).encode()


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library")
    parser.add_argument("folder", nargs="?", default=ROOT / "build/wheel", type=pathlib.Path)
    words = parser.parse_args()
    wheel = words.folder / build_wheel(words.folder, library=words.library)
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()

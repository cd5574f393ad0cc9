"""Images without a registry: docker-archive tars, written here (the cluster's own one) or by deploy/build."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import tarfile
from collections.abc import Mapping, Sequence

from realcluster import ROOT
from realcluster.errors import run

PAUSE_IMAGE = "rubato.test/tool:1"  # also what the tests of the cluster run
SOURCE = ROOT / "tests" / "cluster" / "images" / "tool.c"
NOBODY = 65532


def cache() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "rubato" / "cluster-images"


def tool_image() -> pathlib.Path:
    """The archive of PAUSE_IMAGE; compiled and written once."""
    recipe = hashlib.sha256(SOURCE.read_bytes() + pathlib.Path(__file__).read_bytes()).hexdigest()[:12]
    archive = cache() / f"tool-{recipe}.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    program = archive.with_suffix(f".{os.getpid()}.bin")
    run(["cc", "-static", "-O2", "-Wall", "-Werror", "-s", "-o", program, SOURCE])
    write_archive(archive, PAUSE_IMAGE, {"/tool": program}, ["/tool"], ["pause"])
    program.unlink()
    return archive


def write_archive(archive: pathlib.Path, name: str, files: Mapping[str, pathlib.Path],
                  entrypoint: Sequence[str], words: Sequence[str] = ()) -> None:
    """A docker-archive of one layer with the given files ({path in the image: file}), equal bytes from equal
    input."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        folders: set[str] = set()
        for path in sorted(files):
            _add_folders(tar, path, folders)
            content = files[path].read_bytes()
            tar.addfile(_entry(path, len(content), files[path].stat().st_mode & 0o777), io.BytesIO(content))
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Cmd": list(words), "User": str(NOBODY),
                   "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    hidden = archive.with_suffix(f".{os.getpid()}.new")
    with tarfile.open(hidden, "w") as tar:
        for path, content in ((config_name, config), ("layer.tar", layer.getvalue()),
                              ("manifest.json", manifest)):
            tar.addfile(_entry(path, len(content), 0o644), io.BytesIO(content))
    hidden.rename(archive)


def _entry(path: str, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.size, entry.mode = size, mode
    return entry


def _add_folders(tar: tarfile.TarFile, path: str, seen: set[str]) -> None:
    for parent in reversed(pathlib.PurePosixPath(path.lstrip("/")).parents):
        if str(parent) == "." or str(parent) in seen:
            continue
        seen.add(str(parent))
        entry = _entry(str(parent), 0, 0o755)
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)

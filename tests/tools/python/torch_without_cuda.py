"""Lets the CUDA build of PyTorch, the only one on the Python index for Linux, run on a CPU alone.

The wheel names a dozen CUDA libraries (4 GB of wheels) that a CPU run never calls but that the dynamic
linker wants to see. This writes a small library in the place of each: every symbol PyTorch wants from it
is there, and says what is missing and aborts when called. The CUDA runtime itself is installed for real
(1 MB), because PyTorch registers its kernels with it on import.

Run with the interpreter of the environment that holds PyTorch; needs gcc and binutils.
"""

import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

SITE = pathlib.Path(sysconfig.get_paths()["purelib"])
TORCH = SITE / "torch" / "lib"
STUBS = SITE / "nvidia" / "cu13" / "lib"  # where PyTorch's own search path looks

# Libraries whose symbols carry no version, by the beginning of their names; and version tags that are
# not the library's own name.
PREFIXES = {"libnccl.so": "nccl", "libcufile.so": "cuFile", "libcusparseLt.so": "cusparseLt"}
TAGS = {"NVSHMEM": "libnvshmem_host.so"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted_libraries(objects):
    """The libraries named by PyTorch that are neither its own, nor the driver, nor installed."""
    named = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", run("readelf", "-d", *objects)))
    have = {p.name for p in TORCH.iterdir()} | {p.name for p in STUBS.glob("*")}
    return sorted(n for n in named - have if re.match(r"lib(cu|nv|nccl)(?!da\.so)", n))


def wanted_symbols(objects):
    """(symbol, version tag or "") of everything PyTorch wants from elsewhere, C names only."""
    words = re.findall(r"^ +U (\S+)", run("nm", "-D", "--undefined-only", *objects), re.M)
    return sorted({tuple((w + "@").split("@")[:2]) for w in words if not w.startswith("_Z")})


def write_stub(soname, symbols, folder):
    stem = soname[: soname.index(".so") + 3]
    tags = {soname} | {tag for tag, library in TAGS.items() if library == stem}
    prefix = PREFIXES.get(stem)
    versioned = [s for s, tag in symbols if tag in tags]
    names = versioned or [s for s, tag in symbols if not tag and prefix and s.startswith(prefix)]

    source = folder / "stub.c"
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    lines += [
        f'void {name}(void) {{ fputs("{soname} is a stand-in: {name} was called in an environment '
        f'without CUDA\\n", stderr); abort(); }}'
        for name in names
    ]
    source.write_text("\n".join(lines) + "\n")
    command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", "-o", str(STUBS / soname)]
    if versioned:
        used = {tag for s, tag in symbols if tag in tags}
        script = folder / "versions"
        script.write_text("".join(f"{tag} {{ global: *; }};\n" for tag in used))
        command.append(f"-Wl,--version-script,{script}")
    run(*command, str(source))
    return len(names)


def main():
    if not TORCH.is_dir():
        sys.exit(f"no PyTorch in {SITE}")
    STUBS.mkdir(parents=True, exist_ok=True)
    objects = [str(p) for p in TORCH.glob("*.so")]
    symbols = wanted_symbols(objects)
    with tempfile.TemporaryDirectory() as folder:
        for soname in wanted_libraries(objects):
            count = write_stub(soname, symbols, pathlib.Path(folder))
            print(f"{soname}: {count} symbols")


if __name__ == "__main__":
    main()

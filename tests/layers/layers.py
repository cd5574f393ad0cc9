"""Checks every #include "…" of the tree against cmake/layers.txt: the architecture is a test.

    python3 tests/layers/layers.py [ROOT]
"""

import pathlib
import re
import sys

LAW = "cmake/layers.txt"
ROOTS = ("common", "scheduler", "kube", "apiserver", "operator", "worker", "tools")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc", ".proto"}
INCLUDE = re.compile(r'^\s*(?:#\s*include|import)\s*"([^"]+)"')


def read_law(text):
    """{folder: set of folders it may include}."""
    law = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        folder, colon, allowed = line.partition(":")
        if not colon or folder.strip() in law:
            raise ValueError(f"{LAW}:{number}: want one `folder: folders` a folder, got {line!r}")
        law[folder.strip()] = set(allowed.split())
    for folder, allowed in law.items():
        for name in allowed - law.keys():
            if not any(known.startswith(name + "/") for known in law):
                raise ValueError(f"{LAW}: {folder} may include {name}, which has no line itself")
    return law


def folder_of(path, law):
    """The line of the law for a file: its own, or that of the longest folder that holds it, or None."""
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        folder = "/".join(parts[:length])
        if folder in law:
            return folder
    return None


def is_within(folder, other):
    return folder == other or folder.startswith(other + "/")


def check_file(root, path, law):
    """Sentences about what is wrong in one file; `path` is relative to the root."""
    own = folder_of(path, law)
    if own is None:
        return [f"{path}: its folder has no line in {LAW}"]
    wrong = []
    text = (root / path).read_text(errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target, place = match[1], f"{path}:{number}"
        if target.split("/")[0] not in ROOTS:
            beside = root / pathlib.Path(path).parent / target
            if beside.is_file():
                wrong.append(f'{place}: write it from the root: "{beside.resolve().relative_to(root)}"')
            continue
        other = folder_of(target, law)
        if other is None:
            wrong.append(f"{place}: the folder of {target} has no line in {LAW}")
        elif other != own and not any(is_within(other, name) for name in law[own]):
            wrong.append(f"{place}: {own} may not include {other}")
    return wrong


def check_tree(root):
    """(number of files, sentences about what is wrong)."""
    root = pathlib.Path(root).resolve()
    law = read_law((root / LAW).read_text())
    files = sorted(p.relative_to(root).as_posix() for top in ROOTS for p in (root / top).rglob("*")
                   if p.suffix in SUFFIXES and p.is_file())
    return len(files), [sentence for path in files for sentence in check_file(root, path, law)]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]
    try:
        count, wrong = check_tree(root)
    except ValueError as error:
        sys.exit(str(error))
    if wrong:
        print("\n".join(wrong))
        sys.exit(f"{len(wrong)} includes against the arrows; the law and its reasons: {LAW}")
    if count == 0:
        sys.exit(f"no source file found under {root}")
    print(f"{count} files keep to {LAW}")


if __name__ == "__main__":
    main()

"""Puts one section into docs/benchmarks.md in the place of the one of that name, or at the end; other sections
stay as they are.

    python tests/bench/page.py PAGE NAME < text
"""

import pathlib
import re
import sys


def main():
    page, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    section = f"## {name}\n\n{sys.stdin.read().strip()}\n\n"
    parts = re.split(r"(?m)^(?=## )", page.read_text())
    at = next((i for i, part in enumerate(parts) if part.startswith(f"## {name}\n")), None)
    if at is None:
        parts[-1] = parts[-1].rstrip() + "\n\n"
        parts.append(section)
    else:
        parts[at] = section
    page.write_text("".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main()

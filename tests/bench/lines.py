"""Runs a benchmark program several times and gives the median and spread of every number it prints: lines
that differ in their numbers alone are one row.

    python tests/bench/lines.py --runs 5 -- PROGRAM [WORDS]
"""

import argparse
import re
import subprocess

from table import spread

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w]*\w)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    rows = {}
    for _ in range(args.runs):
        done = subprocess.run(args.command, capture_output=True, text=True, check=True)
        for line in filter(None, done.stdout.splitlines()):
            key = re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip()
            rows.setdefault(key, []).append([float(n) for n in NUMBER.findall(line)])
    print("```")
    for key, runs in rows.items():
        columns = [spread(list(values)) for values in zip(*runs)]
        texts = iter([c.text("{:g}") if c.low != c.high else f"{c.median:g}" for c in columns])
        print(re.sub("#", lambda _: next(texts), key))
    print("```")


if __name__ == "__main__":
    main()

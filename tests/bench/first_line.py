"""How long it takes from `git clone` to the first line that tells a loss: clone, set-up, build without any cache, demo.

    make bench-first-line       or: python3 tests/bench/first_line.py

`make demo` in a fresh clone of HEAD, ended at its first line with a loss. The compiler's cache is off. What
`scripts/setup` has installed on this machine before is not installed again: on a bare Debian 12 its packages come on
top. Prints a table.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from table import markdown  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 1800
GOAL_S = 240
LOSS = re.compile(r"\bloss \d+\.\d+")
# The first line of each part, as `make demo` prints them.
PARTS = [("clone and set-up", re.compile(r"set up: ")), ("build", re.compile(r"^== ")), ("first loss line", LOSS)]


def main():
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        began = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), folder + "/rubato"], check=True)
        environment = dict(os.environ, CCACHE_DISABLE="1", XDG_STATE_HOME=folder + "/state")
        demo = subprocess.Popen(["make", "demo"], cwd=folder + "/rubato", env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            seen = times(demo, began)
        finally:
            os.killpg(demo.pid, signal.SIGINT)  # as Ctrl-C would: the demo takes its cluster down
            demo.communicate(timeout=60)
    rows = [[name, f"{seconds:.0f}"] for name, seconds in seen]
    print(markdown(["until", "seconds after `git clone` began"], rows))
    print(f"\nGoal: the first loss line within {GOAL_S} s: {'kept' if seen[-1][1] <= GOAL_S else 'missed'}.")


def times(demo, began):
    """[(part, seconds until its first line)]."""
    seen, last = [], []
    for line in demo.stdout:
        last = (last + [line])[-20:]
        if PARTS[len(seen)][1].search(line):
            seen.append((PARTS[len(seen)][0], time.monotonic() - began))
            print(f"{seen[-1][0]}: {seen[-1][1]:.0f} s", file=sys.stderr, flush=True)
        if len(seen) == len(PARTS):
            return seen
        if time.monotonic() - began > LIMIT_S:
            break
    raise SystemExit("no loss line:\n" + "".join(last))


if __name__ == "__main__":
    main()

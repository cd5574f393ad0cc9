#!/usr/bin/env python3
"""Makes stories.jsonl.gz and drawn.jsonl.gz anew: scheduling problems, and what make_plan decides.

    cmake --build build/dev --target sim rubatoctl && tests/data/scheduler/gather.py [--seeds 130] [--keep 500]

Of all that the stories give, as different ones as can be had: snapshots are sorted into kinds (which actions, which
reasons, how many nodes and jobs, what their pods go through), and one after the other is taken from each kind, the
largest first. drawn.py makes the others.
"""

import argparse
import collections
import gzip
import json
import pathlib
import subprocess
import tempfile

import drawn

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).parent


def kind_of(record):
    """Snapshots of one kind are alike."""
    snapshot, plan = record["snapshot"], record["plan"]
    pods = [pod for job in snapshot["jobs"] for pod in job.get("held", ())]
    states = frozenset(key for thing in snapshot["jobs"] + pods + snapshot["nodes"] + snapshot.get("queues", [])
                       for key in ("leaving", "lost", "unstarted", "refused", "avoid", "settled", "cooling",
                                   "schedulable", "measured", "quotas", "heldByLeavers", "notAdmitted")
                       if key in thing)
    actions = tuple(sorted((action["kind"], bool(action["add"]), bool(action["remove"])) for action in plan["actions"]))
    verdicts = tuple(sorted(verdict["reason"] for verdict in plan["verdicts"]))
    return actions, verdicts, len(snapshot["nodes"]), states


def chosen(folder, keep):
    """Lines, as many from each kind as there is room for."""
    kinds = collections.defaultdict(list)
    for path in sorted(folder.glob("seed-*.jsonl"), key=lambda path: int(path.stem.split("-")[1])):
        for line in path.read_text().splitlines():
            kinds[kind_of(json.loads(line))].append(line)
    for lines in kinds.values():
        lines.sort(key=lambda line: (-len(line), line))
    print(f"{sum(map(len, kinds.values()))} snapshots of {len(kinds)} kinds")
    order = sorted(kinds.values(), key=lambda lines: (not json.loads(lines[0])["plan"]["actions"], -len(lines[0]), lines[0]))
    taken, depth = [], 0
    while len(taken) < keep and any(len(lines) > depth for lines in order):
        # Where not every kind has a place, kinds with actions have two of three.
        fresh = [lines[depth] for lines in order if len(lines) > depth]
        acting = [line for line in fresh if json.loads(line)["plan"]["actions"]]
        quiet = [line for line in fresh if not json.loads(line)["plan"]["actions"]]
        room = keep - len(taken)
        first = acting[:max(room * 2 // 3, room - len(quiet))]
        taken += first + quiet[:room - len(first)]
        depth += 1
    return sorted(taken)


def dump(record):
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def write(lines, path):
    # Without a name and a time: equal lines, equal bytes.
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write("".join(line + "\n" for line in lines).encode())
    print(f"{len(lines)} in {path.name}, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", default=40, type=int, help="stories of drawn.py")
    parser.add_argument("--rubatoctl", default=ROOT / "build/dev/bin/rubatoctl", type=pathlib.Path)
    parser.add_argument("--sim", default=ROOT / "build/dev/bin/sim", type=pathlib.Path)
    parser.add_argument("--seeds", default=130, type=int)
    parser.add_argument("--keep", default=500, type=int)
    parser.add_argument("--jobs", default=2, type=int, help="stories at once")
    parser.add_argument("--from-folder", type=pathlib.Path, help="what `sim --record` wrote there; no story is run")
    parser.add_argument("--keep-stories", action="store_true", help="their snapshots stay, and are planned anew")
    options = parser.parse_args()
    write([dump(record) for record in drawn.records(options.rubatoctl, options.drawn)], HERE / "drawn.jsonl.gz")
    if options.keep_stories:
        with gzip.open(HERE / "stories.jsonl.gz", "rt") as old:
            records = [json.loads(line) for line in old]
        planner = drawn.Planner(options.rubatoctl)
        write([dump({**record, "plan": planner.plan(record["snapshot"])}) for record in records],
              HERE / "stories.jsonl.gz")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.from_folder or pathlib.Path(scratch)
        if not options.from_folder:
            subprocess.run([options.sim, "--seeds", str(options.seeds), "--jobs", str(options.jobs), "--no-shrink",
                            "--record", folder], check=True)
        lines = chosen(folder, options.keep)
    write(lines, HERE / "stories.jsonl.gz")


if __name__ == "__main__":
    main()

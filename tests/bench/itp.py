"""What the policies make of the ITP traces: mean and p99 completion time by offered load, and deadlines met.

The traces say when jobs came, how long they took on how many GPUs, and no more. So each job gets, by a hash of its id
and a seed, one of the models measured on A100 (with its batch) that runs on its GPUs; its work is what that does in its
time. Elastic policies give it from one GPU to the number on which it is fastest, all others what the trace says. A
deadline is a draw between 0.5 and 1.5 of its time after it came, as in ElasticFlow's generator. A cluster has as many
nodes of 8 as make the offered load (GPU time asked for while jobs come, over what there is).

    tests/bench/itp.py --data ../shared/data --jobs 400     itp/, elasticflow/throughputs_A100/
"""

import argparse
import csv
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from table import markdown

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bench/bin/rubatoctl"
LOADS = [0.7, 0.9, 1.1]
GPUS_PER_NODE = 8
SLOW = ["elasticFlow"]  # it plans all deadlines anew in each round
BESIDE = ["edf", "chronus", "srtf", "afs", "rubato"]


def models(folder):
    """By name and batch: {GPUs: iterations/s}."""
    found = {}
    for file in sorted(folder.glob("*.csv")):
        for row in csv.DictReader(file.open()):
            batch = row.pop("global_batch_size")
            speeds = {int(n): float(speed) for n, speed in row.items() if speed}
            found[f"{file.stem}/{batch}"] = {n: speed for n, speed in speeds.items() if speed > 0}
    return found


def draw(seed, job, what):
    """From 0 to 1, by the job's id."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{what}/{job}".encode()).digest()[:6]) / 2**48


def read_jobs(file, count, known, seed):
    """The jobs in the middle of the trace."""
    rows = sorted(csv.DictReader(file.open()), key=lambda row: float(row["submission_time"]))
    begin = max(0, (len(rows) - count) // 2) if count else 0
    jobs = []
    for row in rows[begin:begin + count if count else None]:
        gpus, duration = int(row["num_gpu"]), max(float(row["duration"]), 1)
        fit = [speeds for speeds in known.values() if gpus in speeds]
        speeds = fit[int(draw(seed, row["job_id"], "model") * len(fit))]
        submit = float(row["submission_time"])
        jobs.append({"id": row["job_id"], "submit_s": submit, "gpus": gpus, "min_gpus": 1,
                     "max_gpus": max(gpus, max(speeds, key=speeds.get)), "work": duration * speeds[gpus],
                     "throughput": ";".join(f"A100:{n}={speed}" for n, speed in speeds.items()),
                     "deadline_s": submit + duration * (0.5 + draw(seed, row["job_id"], "deadline")),
                     "duration": duration})
    return jobs


def nodes_for(jobs, load):
    """What jobs ask for after the last of them has come does not count."""
    begin, end = jobs[0]["submit_s"], jobs[-1]["submit_s"]
    asked = sum(job["gpus"] * min(job["duration"], end - job["submit_s"]) for job in jobs) / (end - begin)
    return max(1, round(asked / load / GPUS_PER_NODE))


def play(jobs, nodes, policies, cost):
    """By policy: mean and p99 JCT, share of deadlines met, share of jobs that the cluster could hold."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        columns = [column for column in jobs[0] if column != "duration"]
        with (out / "trace.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(jobs)
        subprocess.run([PROGRAM, "simulate", "--trace", out / "trace.csv", "--nodes", f"{nodes}x{GPUS_PER_NODE}:A100",
                        "--profiled", "--cost", cost, "--round", "300", "--out", out, "--policy", policies[0],
                        *(["--compare", ",".join(policies[1:])] if policies[1:] else [])],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = {job["id"]: job["deadline_s"] for job in jobs}
        played = {}
        for run in json.loads((out / "summary.json").read_text())["runs"]:
            rows = list(csv.DictReader((out / f"jobs-{run['policy']}-{cost}.csv").open()))
            met = sum(bool(row["finish_s"]) and float(row["finish_s"]) <= deadline[row["id"]] for row in rows)
            played[run["policy"]] = (run["jctMeanSeconds"], run["jctP99Seconds"], met / len(rows), len(rows) / len(jobs))
        return played


def all_policies():
    text = subprocess.run([PROGRAM, "simulate", "--help"], check=True, capture_output=True, text=True).stdout
    listed = text.split("Policies:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in listed if "; knows " in line]


def measure(args, jobs_of_each, policies):
    """By policy and load, of each trace what play() says."""
    known = models(args.data / "elasticflow/throughputs_A100")
    seen = {policy: {load: [] for load in LOADS} for policy in policies}
    for file in sorted((args.data / "itp").glob("*.csv")):
        jobs = read_jobs(file, jobs_of_each, known, args.seed)
        for load in LOADS:
            nodes = nodes_for(jobs, load)
            for policy, figures in play(jobs, nodes, policies, args.cost).items():
                seen[policy][load].append(figures)
            held = seen[policies[0]][load][-1][3]
            print(f"{file.stem}, load {load}: {nodes} nodes, which can hold {held:.0%} of {len(jobs)} jobs",
                  file=sys.stderr)
    return seen


def table(args, jobs_of_each, policies):
    seen = measure(args, jobs_of_each, policies)
    which = f"{jobs_of_each} jobs from the middle of each" if jobs_of_each else "all jobs of each"
    print(f"{len(seen[policies[0]][LOADS[0]])} traces, {which}, cost model {args.cost}, seed {args.seed}: mean JCT, h / "
          "p99 JCT, h / deadlines met; means over the traces. Speeds are known on all sizes; rounds of 300 s.\n")

    def cell(figures):
        mean, p99, met, _ = (statistics.mean(column) for column in zip(*figures))
        return f"{mean / 3600:.2f} / {p99 / 3600:.1f} / {met:.0%}"

    print(markdown(["policy", *(f"load {load}" for load in LOADS)],
                   [[policy, *(cell(seen[policy][load]) for load in LOADS)] for policy in policies]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=ROOT.parent / "shared/data", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=400, help="of each trace, from its middle; 0: all")
    parser.add_argument("--jobs-of-slow", type=int, default=100, help=f"the same for {', '.join(SLOW)}, beside others")
    parser.add_argument("--cost", default="restart")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    table(args, args.jobs, [policy for policy in all_policies() if policy not in SLOW])
    table(args, args.jobs_of_slow, [*SLOW, *BESIDE])


if __name__ == "__main__":
    main()

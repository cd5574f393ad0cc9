#!/usr/bin/env python3
"""Another simulator drives Rubato's scheduler: a snapshot a line into `rubatoctl plan --stream`, a plan a line out of it.

    PATH=build/release/bin:$PATH examples/drive_scheduler.py

A toy with virtual time: jobs of 4 to 16 GPUs arrive at four nodes, run at a speed of their own, and end. What a plan
says is done at once. docs/snapshot.md tells every field of a snapshot and of a plan.
"""

import json
import random
import subprocess
import sys

NODES, GPUS_PER_NODE, JOBS = 4, 8, 12
TICK_S = 30


class Scheduler:
    """`rubatoctl plan --stream` as a function from a snapshot to a plan."""

    def __init__(self, program="rubatoctl"):
        self.process = subprocess.Popen([program, "plan", "--stream"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1)

    def plan(self, snapshot):
        self.process.stdin.write(json.dumps(snapshot) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:  # the line was no snapshot; the stream goes on
            raise ValueError(answer["error"])
        return answer

    def close(self):
        self.process.stdin.close()
        return self.process.wait()


class Job:
    def __init__(self, number, chance):
        self.id = f"job-{number}"
        self.min = chance.choice((4, 8))
        self.max = 2 * self.min
        self.work = self.min * chance.randint(10, 40) * TICK_S  # GPU seconds
        self.arrives = chance.randint(0, 40) * TICK_S
        self.pods = {}  # node by ordinal
        self.ordinals = 0  # never used twice
        self.ended = None

    def as_json(self):
        return {"id": self.id, "queue": "all", "queuedAtSeconds": self.arrives, "gpus": {"min": self.min, "max": self.max},
                "perPod": {"gpus": 1}, "started": bool(self.pods),
                "held": [{"ordinal": ordinal, "node": node, "gpuType": "A100", "gpus": 1}
                         for ordinal, node in self.pods.items()]}


def snapshot_of(jobs):
    used = [node for job in jobs for node in job.pods.values()]
    nodes = [{"id": name, "gpuType": "A100", "gpus": GPUS_PER_NODE, "free": {"gpus": GPUS_PER_NODE - used.count(name)}}
             for name in (f"n{i}" for i in range(NODES))]
    return {"version": 1, "nodes": nodes, "queues": [{"name": "all"}], "jobs": [job.as_json() for job in jobs]}


def main():
    chance = random.Random(1)
    jobs = [Job(number, chance) for number in range(JOBS)]
    scheduler = Scheduler(*sys.argv[1:2])
    now = 0
    while any(job.ended is None for job in jobs):
        present = {job.id: job for job in jobs if job.arrives <= now and job.ended is None}
        plan = scheduler.plan(snapshot_of(list(present.values())))
        for action in plan["actions"]:
            job = present[action["job"]]
            for ordinal in action["remove"]:
                del job.pods[ordinal]
            for added in action["add"]:
                job.pods[job.ordinals] = added["node"]
                job.ordinals += 1
            print(f"{now:6} s  {action['kind']:8} {job.id:7} to {len(job.pods):2} GPUs: {action['reason']}")
        now += TICK_S
        for job in present.values():
            job.work -= len(job.pods) * TICK_S
            if job.work <= 0:
                job.pods, job.ended = {}, now
                print(f"{now:6} s  end      {job.id}")
    print(f"mean completion {sum(job.ended - job.arrives for job in jobs) / len(jobs):.0f} s, makespan {now} s")
    return scheduler.close()


if __name__ == "__main__":
    sys.exit(main())

"""Scheduling problems that the simulation's small clusters never meet: hundreds of nodes of several types, queues that
guarantee, limit and borrow, preemption, jobs that mix types or keep to one node. Drawn by seed; each story goes on for
some rounds by what `rubatoctl plan --stream` answers, while nodes and pods are lost and jobs come and go.
"""

import json
import random
import subprocess

TYPES = ("A100", "H100", "V100")
GUARANTEES = (0, 4, 8, 16, 32)
ROUNDS = 6
# Beside the default. Later ones have tests of their own, and are not recorded.
POLICIES = ("rubato", "fifo", "fifoBackfill", "sjf", "srtf", "srsf", "las", "tiresias")


class Planner:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "plan", "--stream"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def plan(self, snapshot):
        self.process.stdin.write(json.dumps(snapshot) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        answer.pop("certificate", None)
        for verdict in answer["verdicts"]:
            verdict.pop("fix", None)
        return answer


def draw_queues(chance):
    queues = []
    for number in range(chance.randint(1, 4)):
        queue = {"name": f"q{number}"}
        quotas = []
        for gpu_type in ("*", *TYPES):
            if chance.random() < 0.4:
                quota = {"gpuType": gpu_type, "guaranteed": chance.choice(GUARANTEES)}
                if chance.random() < 0.5:
                    quota["limit"] = quota["guaranteed"] + chance.choice(GUARANTEES)
                quotas.append(quota)
        queue.update(quotas=quotas, borrowing=chance.random() < 0.8, closed=chance.random() < 0.05,
                     preempts=chance.choice(("nobody", "ownQueue", "anyQueue")))
        queues.append(queue)
    return queues


def draw_job(chance, number, now, nodes, queues):
    pod = chance.choice((1, 1, 1, 2, 4, 8))
    least = chance.choice((1, 1, 2, 4, 8))
    job = {"id": f"job-{number}", "name": f"team/{number}", "queue": chance.choice(queues)["name"],
           "priority": chance.choice((0, 0, 0, 5, 10)), "weight": chance.choice((1, 1, 0.5, 3)), "queuedAtSeconds": now,
           "gpus": {"min": pod * least, "max": pod * least * chance.choice((1, 2, 4))},
           "perPod": {"gpus": pod, "milliCpu": 4000 * pod, "memoryBytes": pod << 34},
           "mix": chance.random() < 0.1, "oneNode": chance.random() < 0.1, "mayPreempt": chance.random() < 0.9,
           "held": [], "measured": []}
    if chance.random() < 0.3:
        job["gpus"]["shape"] = "powersOfTwo"
    if chance.random() < 0.3:
        job["allow"] = chance.sample(TYPES, chance.randint(1, 2))
    if chance.random() < 0.2:
        job["eligible"] = [node["id"] for node in nodes if chance.random() < 0.5]
    if chance.random() < 0.1:
        job["avoid"] = [chance.choice(nodes)["id"]]
    for gpus in chance.sample((1, 2, 4, 8), chance.randint(0, 3)):
        job["measured"].append({"gpuType": chance.choice(TYPES), "gpus": gpus,
                                "tokensPerSecond": round(gpus ** 0.9 * chance.uniform(1e3, 1e5), 3)})
    return job


def account(nodes, jobs):
    """What is free, with what pods hold that are not lost."""
    for node in nodes:
        node["free"] = {"gpus": node["gpus"], "milliCpu": 10000 * node["gpus"], "memoryBytes": node["gpus"] << 36}
    by_id = {node["id"]: node["free"] for node in nodes}
    for job in jobs:
        for held in job["held"]:
            if held["node"] in by_id and not held.get("lost"):
                for what, amount in job["perPod"].items():
                    by_id[held["node"]][what] -= amount


def disturb(chance, nodes, jobs):
    """Pods that were told to leave are gone now; something else goes wrong."""
    for job in jobs:
        job["held"] = [held for held in job["held"] if not held.get("leaving")]
        job["settled"], job["cooling"] = chance.random() < 0.9, chance.random() < 0.1
        for held in job["held"]:
            if chance.random() < 0.01:
                held.update(lost=True, unstarted=chance.random() < 0.5)
    for node in nodes:
        node["schedulable"] = chance.random() > 0.03
    if len(nodes) > 4 and chance.random() < 0.3:
        gone = nodes.pop(chance.randrange(len(nodes)))
        for job in jobs:
            for held in job["held"]:
                if held["node"] == gone["id"]:
                    held["lost"] = True


def obey(plan, jobs):
    by_id = {job["id"]: job for job in jobs}
    for action in plan["actions"]:
        job = by_id[action["job"]]
        removed = set(action["remove"])
        job["held"] = [held for held in job["held"] if not (held["ordinal"] in removed and held.get("lost"))]
        for held in job["held"]:
            if held["ordinal"] in removed:
                held["leaving"] = True
        for added in action["add"]:
            job["next"] = job.get("next", 0) + 1
            job["held"].append({"ordinal": job["next"], **added})
        job["started"] = any(not held.get("leaving") for held in job["held"])


def add_times(chance, now_ms, jobs):
    """What policies look at that order jobs by time; few other reasons to wait. Drawn apart: stories without a policy's name stay as they are."""
    for job in jobs:
        job["priority"] = 0
        holds = sum(held["gpus"] for held in job["held"] if not held.get("leaving") and not held.get("lost"))
        job["attainedGpuMs"] = job.get("attainedGpuMs", 0) + holds * chance.randint(0, 400_000)
        if holds:
            job["allocatedMs"] = job.get("allocatedMs", now_ms - chance.randint(0, 90_000))
        else:
            job.pop("allocatedMs", None)
        if "remainingMs" not in job and chance.random() < 0.8:
            job["durationMs"] = job["remainingMs"] = chance.randint(1_000, 10_000_000)
        elif holds and "remainingMs" in job:
            job["remainingMs"] -= min(job["remainingMs"], 100_500)


def story(planner, seed, size, policy=None):
    """Records of one story: `size` nodes at first."""
    times = random.Random(f"{seed} times")
    chance = random.Random(seed)
    nodes = [{"id": f"n{i:03}", "gpuType": chance.choice(TYPES), "gpus": chance.choice((4, 8, 8))} for i in range(size)]
    queues = draw_queues(chance)
    jobs, count = [], 0
    for number in range(ROUNDS):
        for _ in range(chance.randint(size // 6, size // 2) + 1):
            jobs.append(draw_job(chance, count, 100.5 * number, nodes, queues))
            count += 1
        jobs = [job for job in jobs if chance.random() > 0.1]
        account(nodes, jobs)
        snapshot = {"version": 1, "policy": {"name": "marginalThroughput", "preempt": chance.random() < 0.9, "grownPerRound": chance.choice((2, 100000))},
                    "nodes": nodes, "queues": queues,
                    "jobs": [{name: value for name, value in job.items() if name != "next"} for job in jobs]}
        if policy:
            for queue in queues:
                queue.pop("quotas", None)
            snapshot["nowMs"] = 1_000_000 + 100_500 * number
            snapshot["policy"]["name"] = policy
            add_times(times, snapshot["nowMs"], jobs)
            snapshot["jobs"] = [{name: value for name, value in job.items() if name != "next"} for job in jobs]
        text = json.dumps(snapshot)
        plan = planner.plan(snapshot)
        yield {"from": f"drawn {seed}{f' {policy}' if policy else ''} round {number}", "snapshot": json.loads(text), "plan": plan}
        obey(plan, jobs)
        disturb(chance, nodes, jobs)


def records(program, stories):
    """Small ones, and one in ten of a hundred nodes and more; then some of each of POLICIES."""
    planner = Planner(program)
    for seed in range(stories):
        yield from story(planner, seed, 160 if seed % 10 == 9 else 4 + seed % 10 * 2)
    for policy in POLICIES:
        for seed in range(stories // 10):
            yield from story(planner, seed, 6 + seed % 10 * 6, policy)
    planner.process.stdin.close()
    planner.process.wait()

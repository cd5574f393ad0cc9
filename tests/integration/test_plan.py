"""`rubatoctl plan` as a person, a page and another program use it; no cluster is needed."""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin" / "rubatoctl"
SNAPSHOT = ROOT / "examples" / "snapshot.json"
COMMAND_S = 60


def rubatoctl(*words, input=None, code=0):
    done = subprocess.run([PROGRAM, *map(str, words)], cwd=ROOT, input=input, capture_output=True, text=True,
                          timeout=COMMAND_S)
    assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def plan(*words, **how):
    return rubatoctl("plan", *words, **how)


def what_if(*words, **how):
    return rubatoctl("what-if", *words, **how)


def test_the_page_shows_the_example_and_its_plan():
    page = (ROOT / "docs" / "snapshot.md").read_text()
    shown, planned = (json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", page, re.S | re.M))
    assert shown == json.loads(SNAPSHOT.read_text())
    made = json.loads(plan(SNAPSHOT))
    for worths in (made["certificate"], made["certificate"]["aboveMinimums"]):
        for worth in ("value", "bound"):
            worths[worth] = round(worths[worth], 2)
    assert planned == made


def test_every_field_that_is_read_is_on_the_page():
    page = (ROOT / "docs" / "snapshot.md").read_text()
    code = (ROOT / "scheduler" / "snapshot" / "read_snapshot.cc").read_text()
    fields = set(re.findall(r'\.(?:whole|number|flag|text|word|each|texts|object|member)\(\s*"(\w+)"', code))
    assert len(fields) > 30, fields
    assert not [field for field in sorted(fields) if not re.search(rf"[`.]{field}`", page)]


def test_table_for_people():
    said = plan(SNAPSHOT, "-o", "table")
    assert re.search(r"^grow +team-a/llm +\+4 on n1 ", said, re.M), said
    assert re.search(r"^job-2 +never +QueueLimit ", said, re.M), said


def test_a_plan_of_rubato_says_how_good_it_is():
    snapshot = json.loads(SNAPSHOT.read_text())
    unsaid = plan(SNAPSHOT)
    snapshot["policy"] = {"name": "fifo"}
    assert "certificate" not in json.loads(plan(input=json.dumps(snapshot)))
    snapshot["policy"] = {"name": "rubato"}
    assert plan(input=json.dumps(snapshot)) == unsaid
    certificate = json.loads(plan(input=json.dumps(snapshot)))["certificate"]
    assert 0 < certificate["value"] <= certificate["bound"], certificate
    assert abs(certificate["gap"] - 1 + certificate["value"] / certificate["bound"]) < 1e-9, certificate
    said = plan("-", "-o", "table", input=json.dumps(snapshot))
    sentence = r"^At most [0-9.]+ % below the best plan if queues shared all: worth [0-9.]+ GPUs of [0-9.]+\.$"
    assert re.search(sentence, said, re.M), said
    above = certificate["aboveMinimums"]
    assert 0 <= above["value"] <= above["bound"] <= certificate["bound"], certificate
    assert certificate["gap"] <= above["gap"] <= 1, certificate
    assert re.search(r"^Of what is above the minimums of its jobs: at most [0-9.]+ %\.$", said, re.M), said


def test_explain_tells_of_one_job():
    def explain(job, code=0):
        done = subprocess.run([PROGRAM, "explain", job, "-f", SNAPSHOT], capture_output=True, text=True, timeout=COMMAND_S)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert explain("job-2").endswith('The smallest change that helps: raise the limit of queue "research" to 16 GPUs.\n')
    assert "Now it grows to 8 GPUs: free GPUs raise its throughput.\n" in explain("team-a/llm")
    assert f'{SNAPSHOT}: there is no job "nobody"; there are team-a/llm, job-2' in explain("nobody", code=1)


def test_the_table_says_when_a_job_is_expected_to_start():
    snapshot = json.loads(SNAPSHOT.read_text())
    snapshot["jobs"][0]["remainingMs"] = 720_000
    snapshot["jobs"][0]["gpus"] = {"min": 4, "max": 4}
    snapshot["jobs"][1]["gpus"] = {"min": 8, "max": 8}
    snapshot["queues"][0]["quotas"][0]["limit"] = 8
    said = plan("-", "-o", "table", input=json.dumps(snapshot))
    assert re.search(r"^job-2 +not now +QueueLimit +in about 12 min +queue ", said, re.M), said


def test_what_if_does_what_the_page_shows():
    page = (ROOT / "docs" / "snapshot.md").read_text()
    shown = [line.split()[2:] for line in page.splitlines() if line.startswith("rubatoctl what-if ")]
    assert len(shown) == 5, shown
    for words in shown:
        said = what_if(*words)
        if "json" not in words:
            assert re.search(r"^ +JOB +NOW +GPUS +NODES +THEN ", said, re.M), said
    fits = what_if(SNAPSHOT, "--set", "job=job-2,min=8,max=8")
    assert re.search(r"^\* +job-2 +never +0 +runs +8 +8 on n", fits, re.M), fits
    ended = json.loads(what_if("--remove-job", "team-a/llm", SNAPSHOT, "-o", "json"))
    assert [job["then"]["state"] for job in ended["jobs"]] == ["removed", "never"], ended
    assert ended["then"]["gpusUsed"] == 0, ended


def test_what_if_says_what_was_expected():
    assert "nothing would be different; expected --policy, " in what_if(SNAPSHOT, code=1)
    gone = what_if(SNAPSHOT, "--without-node", "n9", code=1)
    assert '--without-node n9: there is no node "n9"; there are n1, n2' in gone, gone
    said = what_if("--help")
    assert "rubatoctl what-if examples/snapshot.json --add-nodes 2,like=n1" in said, said


def test_from_a_pipe_and_from_a_file_it_is_the_same():
    assert plan(input=SNAPSHOT.read_text()) == plan("-", input=SNAPSHOT.read_text()) == plan(SNAPSHOT)


def test_help_teaches():
    said = plan("--help")
    assert "rubatoctl plan examples/snapshot.json -o table" in said and "--stream" in said, said


def test_errors_name_the_field(tmp_path):
    snapshot = json.loads(SNAPSHOT.read_text())
    snapshot["jobs"][1]["gpus"]["min"] = -1
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(snapshot))
    assert f"{bad}: jobs[1].gpus.min: -1, expected a whole number from 1 to 1048576" in plan(bad, code=1)
    assert "No such file" in plan(tmp_path / "none.json", code=1)


def test_stream_goes_on_after_a_bad_line():
    good = json.dumps(json.loads(SNAPSHOT.read_text()))
    lines = plan("--stream", input=f"{good}\nnonsense\n{{}}\n{good}\n").splitlines()
    assert len(lines) == 4
    assert lines[0] == lines[3] == plan(SNAPSHOT).rstrip("\n")
    assert set(json.loads(lines[1])) == {"error"}
    assert json.loads(lines[1])["error"].startswith("line 2 cannot be read as JSON: it is nonsense; JSON: "), lines[1]
    assert json.loads(lines[2])["error"].startswith("version: missing")


def test_stream_goes_on_after_a_line_that_is_longer_than_a_snapshot_may_be():
    good = json.dumps(json.loads(SNAPSHOT.read_text()))
    longest = 64 << 20
    lines = plan("--stream", input=f"{'x' * longest}x\n{good}{' ' * (longest - len(good))}\n").splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["error"].startswith(f"line 1 is longer than a snapshot may be, {longest} bytes"), lines[0]
    assert lines[1] == plan(SNAPSHOT).rstrip("\n")


def test_another_simulator_drives_it():
    done = subprocess.run([sys.executable, ROOT / "examples" / "drive_scheduler.py", PROGRAM], capture_output=True,
                          text=True, timeout=COMMAND_S)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^mean completion \d+ s, makespan \d+ s$", done.stdout, re.M), done.stdout
    assert done.stdout.count(" end ") == 12

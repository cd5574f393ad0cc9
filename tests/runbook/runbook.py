"""docs/runbook.md explains every condition, reason, event, refusal and metric that the code has, and none that it has
not; each reason is set by the code, and each reason, event and refusal asked for by a test. Python's standard library
only."""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("common", "kube", "apiserver", "operator", "scheduler", "worker", "tools")


def sources(folders=FOLDERS):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                yield path.read_text()


def words_of(text, namespace):
    """The string constants in `namespace NAME { … }`."""
    body = re.search(rf"namespace {namespace} {{(.*?)}}  // namespace {namespace}", text, re.S)[1]
    return set(re.findall(r'=\s*"(\w+)"', body))


def in_code():
    conditions = (ROOT / "operator/api/conditions.h").read_text()
    everything = list(sources())
    found = {
        "conditions": words_of(conditions, "condition"),
        "reasons of conditions": words_of(conditions, "reason"),
        "events": set(), "metrics": set(), "refusals": set(),
    }
    for text in everything:
        found["metrics"] |= set(re.findall(
            r'\b(?:counter|gauge|histogram)\(\s*(?:metrics,\s*)?"([a-z0-9_]+)"', text))
        # Reasons that the coordinator makes up itself, and those of workers that end a job.
        found["reasons of conditions"] |= set(re.findall(r'failure_reason = "(\w+)"', text))
        found["refusals"] |= set(re.findall(r'\b(?:refuse\([^,()]*channel,\s*|count_refused\(|refusals\()"(\w+)"', text))
    for text in sources(["operator/coordinator"]):
        found["reasons of conditions"] |= set(re.findall(r'char\* k(?:Mismatch|Diverged|DeviceLost) = "(\w+)"', text))
        found["reasons of conditions"] |= set(re.findall(r'Refusal \w+{[^}]*\.reason = "(\w+)"', text))
    for text in sources(["worker/step"]):
        found["reasons of conditions"] |= set(re.findall(r'set_reason\("(\w+)"\)', text))
        found["reasons of conditions"] |= set(re.findall(r'\bfail\("(\w+)",[^;]*,\s*wire::FAILURE_SCOPE_(?:WORKER|JOB)\);', text))
    for text in sources(["worker/data", "worker/checkpoint", "worker/step"]):
        found["reasons of conditions"] |= set(re.findall(r'with_reason\([^;]*"(\w+)"\)', text))
        found["reasons of conditions"] |= set(re.findall(r'char\* k(?:Checkpoint|InitFrom)\w+ = "(\w+)"', text))
    for path in sorted((ROOT / "python/rubato").glob("*.py")):  # what a script of runtime pytorch does wrong
        found["reasons of conditions"] |= set(re.findall(r'(?:Refused\(\s*|"reason": )"(\w+)"', path.read_text()))
    for text in sources(["operator/control"]):
        for call in re.findall(r"\b(?:emit|warn_at_times)\((.*?)\);", text, re.S):
            before_note = call.split("fmt::format")[0]
            # "Reason", "Action": every second word of a call that names them; alternatives by ?:.
            literals = re.findall(r'"([A-Z]\w+)"', before_note)
            found["events"] |= set(literals[:-1])
    found["events"] -= {"TrainingJob"}
    return found


def in_page(text):
    titles = {"## Conditions": "conditions", "## Reasons of conditions": "reasons of conditions",
              "## Events": "events", "## Metrics": "metrics"}
    found = {name: set() for name in (*titles.values(), "refusals")}
    now = None
    for line in text.splitlines():
        if line.startswith("## "):
            now = titles.get(line)
        elif line.startswith("Reasons of `rubato_coordinator_refused_total`"):
            now = "refusals"
        elif now and (row := re.match(r"\| `(\w+)` \|", line)):
            found[now].add(row[1])
    return found


def differences(code, page):
    for kind in code:
        for name in sorted(code[kind] - page[kind]):
            yield f"docs/runbook.md does not explain `{name}` ({kind})"
        for name in sorted(page[kind] - code[kind]):
            yield f"docs/runbook.md explains `{name}` ({kind}), which the code does not have"


def constants_of_reasons():
    """Word by constant, of operator/api/conditions.h."""
    return dict(re.findall(r"string_view (k\w+)\s*=\s*\"(\w+)\";", (ROOT / "operator/api/conditions.h").read_text()
                           .split("namespace reason")[1]))


def uncounted(page, job_flow, constants):
    """Reasons of waiting and of the end that the metrics would show as Other, and the other way round."""
    rows = re.findall(r"^\| `(\w+)` \| (?:Queued|Complete|(?:Recovering, )?Failed) \|", page.split("## Reasons of conditions")[1]
                      .split("\n## ")[0], re.M)
    table = re.search(r"kReasons\[\] = \{(.*?)\};", job_flow, re.S)[1]
    counted = {word or constants[constant] for constant, word in re.findall(r'reason::(k\w+)|"(\w+)"', table)}
    for name in sorted(set(rows) - counted):
        yield f"operator/control/job_flow.cc counts the reason `{name}` as Other: add it to kReasons"
    for name in sorted(counted - set(rows)):
        yield f"operator/control/job_flow.cc counts `{name}`, no reason of docs/runbook.md for waiting or an end"


def unset(constants):
    """Reasons of conditions.h that no code sets."""
    code = "\n".join(path.read_text() for path in sorted((ROOT / "operator").rglob("*.cc")))
    for constant, word in sorted(constants.items()):
        if f"reason::{constant}" not in code:
            yield f"no code sets the reason `{word}`"


def asking_in_cc(text):
    """What is asserted: EXPECT_…(…), ASSERT_…(…), and calls of functions that are named for it."""
    for call in re.finditer(r"\b(?:EXPECT|ASSERT|expect)_\w+\(", text):
        depth = 1
        for part in re.finditer(r'"(?:[^"\\]|\\.)*"|[()]', text[call.end():]):
            depth += {"(": 1, ")": -1}.get(part[0], 0)
            if depth == 0:
                yield text[call.start():call.end() + part.end()]
                break


def asking_in_python(text):
    """assert statements, and calls that wait for something or expect an exception."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Assert) or name.startswith(("wait_", "expect_")) or name == "raises":
            yield "".join(lines[node.lineno - 1:node.end_lineno])


def asking():
    """The statements of the tests that ask for something. What a test gives in is not among them."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".cc", ".h"):
            found += asking_in_cc(path.read_text())
        elif path.suffix == ".py" and path.parent != pathlib.Path(__file__).resolve().parent:
            found += asking_in_python(path.read_text())
    return "\n".join(found)


def unasked(kind, words, constant_of, tests):
    """Words that no statement of `tests` asks for, as a word or by their constant."""
    for word in sorted(words):
        constant = constant_of.get(word)
        if f'"{word}"' not in tests and not (constant and re.search(rf"\b{constant}\b", tests)):
            yield f"no test asks for `{word}` ({kind})"


def self_test():
    code = {"metrics": {"a", "b"}}
    assert list(differences(code, {"metrics": {"a", "c"}})) == [
        "docs/runbook.md does not explain `b` (metrics)",
        "docs/runbook.md explains `c` (metrics), which the code does not have"]
    page = "## Reasons of conditions\n| `A` | Failed | |\n| `B` | Queued | |\n| `C` | Running | |\n"
    assert list(uncounted(page, 'kReasons[] = {reason::kA, "D"};', {"kA": "A"})) == [
        "operator/control/job_flow.cc counts the reason `B` as Other: add it to kReasons",
        "operator/control/job_flow.cc counts `D`, no reason of docs/runbook.md for waiting or an end"]
    tests = 'EXPECT_EQ(reason, reason::kAsked); assert said == "Said"; a-b'
    constant_of = {"Asked": "kAsked", "Unsaid": "kUn"}
    assert list(unasked("events", {"Asked", "Said", "Other", "Unsaid"}, constant_of, tests)) == [
        "no test asks for `Other` (events)", "no test asks for `Unsaid` (events)"]
    assert list(asking_in_cc('give("A"); EXPECT_EQ(f([] { g(); }), "B)");\n  expect_waits("D",\n {1}); f("E");')) == [
        'EXPECT_EQ(f([] { g(); }), "B)")', 'expect_waits("D",\n {1})']
    assert list(asking_in_python('give("A")\nassert said == (\n  "B")\njob.wait_for("C")\n')) == [
        'assert said == (\n  "B")\n', 'job.wait_for("C")\n']
    assert in_page("## Metrics\n| `x_total` | y |\n## Other\n| `z` | |")["metrics"] == {"x_total"}


def main():
    self_test()
    code = in_code()
    assert all(code.values()), f"nothing found of {[kind for kind in code if not code[kind]]}"
    page = (ROOT / "docs/runbook.md").read_text()
    constants = constants_of_reasons()
    names = dict(re.findall(r'char\* (k\w+) = "(\w+)"', "\n".join(sources(["worker"]))))
    constant_of = {word: constant for constant, word in (constants | names).items()}
    tests = asking()
    wrong = [*differences(code, in_page(page)),
             *uncounted(page, (ROOT / "operator/control/job_flow.cc").read_text(), constants),
             *unset(constants)]
    for kind in ("reasons of conditions", "events", "refusals"):
        wrong += unasked(kind, code[kind], constant_of, tests)
    print("\n".join(wrong) or f"runbook: {', '.join(f'{len(v)} {k}' for k, v in code.items())}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""`cmake --install` puts down all programs and what they need beside them, each says its version, the chart's is the
same, and nothing is in it that is made for tests. Python's standard library only.

    installed.py BUILD VERSION PROGRAM…
"""

import pathlib
import subprocess
import sys
import tempfile

# What worker/testing reads and writes: fault points and the ledger of samples.
FOR_TESTS = [b"RUBATO_FAULT_PHASE", b"RUBATO_LEDGER", b"fault-point phase=", b'{"forward":1', b"parse_fault_plan"]

ROOT = pathlib.Path(__file__).resolve().parents[2]


def for_tests(program):
    """What is in it and should not be; a name alone is in the demo's manifest, and plants nothing."""
    held = program.read_bytes()
    return [word.decode() for word in FOR_TESTS if word in held]


def problems(build, version, programs):
    with tempfile.TemporaryDirectory() as prefix:
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        for name in programs:
            said = subprocess.run([f"{prefix}/bin/{name}", "--version"], capture_output=True, text=True, timeout=20)
            if said.returncode != 0 or said.stdout.strip() != f"{name} {version}":
                yield f"{name} --version: status {said.returncode}, {said.stdout.strip()!r}"
        testing = pathlib.Path(build) / "bin/testing/rubato-worker"
        if sorted(for_tests(testing)) != sorted(word.decode() for word in FOR_TESTS):
            yield f"{testing} holds only {for_tests(testing)}: what is looked for has another name now"
        for path in (path for path in pathlib.Path(prefix).rglob("*") if path.is_file()):
            for word in for_tests(path):
                yield f"{path.relative_to(prefix)} holds {word}, which is for tests (worker/testing)"
        for needed in ("crds/trainingjobs.yaml", "helm/rubato/Chart.yaml", "examples/gpt-kjv.yaml"):
            if not (pathlib.Path(prefix) / "share/rubato" / needed).exists():
                yield f"share/rubato/{needed} is not installed"
    chart = (ROOT / "helm/rubato/Chart.yaml").read_text()
    for field in ("version", "appVersion"):
        if f"\n{field}: {version}\n" not in chart:
            yield f"helm/rubato/Chart.yaml: {field} is not {version}"


def main():
    build, version, *programs = sys.argv[1:]
    wrong = list(problems(build, version, programs))
    print("\n".join(wrong) or f"installed: {len(programs)} programs of version {version}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

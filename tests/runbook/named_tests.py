"""Every test that docs/*.md name is there: `Suite.Name` among the sources, and what looks like a test of ctest
(`kill_matrix`, `sim_…`, `…_test`) in the CMake lists. Python's standard library only."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def defined():
    tests = set()
    for path in sorted((ROOT / "tests").rglob("*.cc")):
        for suite, name in re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", path.read_text(), re.M):
            tests.add(f"{suite}.{name}")
    lists = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("CMakeLists.txt")))
    called = re.findall(r"(?:add_test\(\s*NAME|rubato_\w*test\w*\(|rubato_\w+_test\()\s*(\w+)", lists)
    called += [f"planted_{program}" for program in re.findall(r"rubato_planted_rows\((\w+)", lists)]
    return tests, set(called) | {path.stem for path in (ROOT / "tests/runbook").glob("*.py")}


def missing(text, tests, programs):
    """What a page names in `code` and nobody defines; `Suite.*` is any test of a suite."""
    suites = {test.split(".")[0] for test in tests}
    for name in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"[A-Z]\w*\.\*", name):
            if name[:-2] not in suites:
                yield name
        elif re.match(r"[A-Z]\w*\.[A-Z]", name) and name not in tests:
            yield name
        elif re.fullmatch(r"[a-z]\w*_test|kill_matrix\w*|sim_\w+", name) and name not in programs:
            yield name


def self_test():
    text = "`A.B` `A.C…` `A.*` `D.*` `README.md` `x_test` `y_test` `Form.stop_steps`"
    assert list(missing(text, {"A.B"}, {"x_test"})) == ["A.C…", "D.*", "y_test"]


def main():
    self_test()
    tests, programs = defined()
    pages = sorted((ROOT / "docs").rglob("*.md"))
    wrong = [f"{page.relative_to(ROOT)} names `{name}`, which is no test"
             for page in pages for name in missing(page.read_text(), tests, programs)]
    print("\n".join(wrong) or f"named_tests: {len(tests)} tests, {len(programs)} programs, {len(pages)} pages")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a script exits with, as its pod's agent hears it: by the engine itself, in processes of their own."""

import os
import pathlib
import subprocess
import sys

import rubato

_EARLY = "The script ended before the job's last step"
_EXITS = {  # what stands behind Job() -> the status, and what the agent is told
    "sys.exit(3)": (3, "the script exited with status 3"),
    "raise SystemExit(4)": (4, "the script exited with status 4"),
    "leave(5)": (5, "the script exited with status 5"),
    "quit(code=6)": (6, "the script exited with status 6"),
    "sys.exit('no data')": (1, "the script exited with status 1"),
    "os._exit(7)": (7, None),
    "1 / 0": (1, "ZeroDivisionError"),
    "sys.exit(0)": (0, _EARLY),
    "sys.exit(256)": (0, _EARLY),
    "elsewhere()": (0, _EARLY),
    "fork_last = True": (0, _EARLY),
}
_SCRIPT = """
import atexit, ctypes, os, socket, sys, threading
from sys import exit as leave
import rubato.program, rubato.trainer  # which each child would import in its Job
from test_rubato_exit import _EXITS

fork_last = False

def elsewhere():
    try:
        sys.exit(1)
    except SystemExit:
        pass
    thread = threading.Thread(target=sys.exit, args=(1,))
    thread.start()
    thread.join()
    if os.fork() == 0:
        sys.exit(1)
    os.wait()

def at_last():  # behind what the Job does when the interpreter ends
    if fork_last:
        if os.fork() == 0:
            ctypes.CDLL(None).exit(9)
        os.wait()

for text in _EXITS:
    ours, agents = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        os.environ["RUBATO_AGENT_FD"] = str(agents.detach())
        atexit.register(at_last)
        rubato.Job(None, rubato.Indexed([1]), None)
        exec(text)
        break
    agents.close()
    heard = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    ours.close()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = [word for _, word in _EXITS.values() if word and word.encode() in heard]
    print([status, *sorted(set(found))], flush=True)
"""


def test_the_status_of_the_process_is_told(tmp_path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        + ["-keyout", tmp_path / "tls.key", "-out", tmp_path / "tls.crt", "-days", "30", "-subj", "/CN=job"],
        check=True,
        capture_output=True,
    )
    (tmp_path / "ca.crt").write_bytes((tmp_path / "tls.crt").read_bytes())
    folders = [pathlib.Path(rubato.__file__).parents[1], pathlib.Path(__file__).parent]
    pod = {"RUBATO_JOB_UID": "job", "RUBATO_POD_UID": "pod", "RUBATO_SECRET_DIR": str(tmp_path)}
    script = subprocess.run(
        [sys.executable, "-B", "-c", _SCRIPT],
        env={**os.environ, **pod, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
    )
    expected = [str([status, word] if word else [status]) for status, word in _EXITS.values()]
    assert script.stdout.splitlines() == expected

# A spare: an interpreter that has imported torch and made a step, and waits for what it is to run.
# Rubato starts it by -c, with the interpreter and the flags of the person's command; a socket to
# rubato-script is RUBATO_SPARE_FD. What a script sees of it is what a fresh interpreter shows: no
# random number is drawn, and argv, sys.path and __main__ are the script's.
import json
import os
import runpy
import socket
import sys
import types


def prepare():
    import torch
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight]).step()


def told_by(line):
    text = b""
    while not text.endswith(b"\n"):
        more = line.recv(1 << 16)
        if not more:
            os._exit(0)  # nobody needs it
        text += more
    return json.loads(text)


def set_first_path(folder):
    if not getattr(sys.flags, "safe_path", False):  # else no folder of the program's is in front
        sys.path[0] = folder


def main():
    with socket.socket(fileno=int(os.environ.pop("RUBATO_SPARE_FD"))) as line:
        prepare()
        line.sendall(b"ready\n")
        told = told_by(line)
    os.environ.update(told["variables"])
    sys.argv = told["arguments"]
    name = sys.argv[0]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__builtins__ = __builtins__
    if told["module"]:
        set_first_path(os.getcwd())
        return runpy._run_module_as_main(name)  # as python -m does
    set_first_path(os.path.dirname(os.path.realpath(name)))
    module.__file__ = name
    with open(name, "rb") as script:
        code = compile(script.read(), name, "exec")
    exec(code, module.__dict__)


main()

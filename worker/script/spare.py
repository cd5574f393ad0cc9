# A spare: an interpreter that has imported what a training script imports, and waits for its start.
# Rubato runs it by -c, with the interpreter, the flags and the arguments of the person's command; a
# socket to rubato-script is RUBATO_SPARE_FD. What a script sees of it is what a fresh interpreter
# shows: no random number is drawn, no device is looked at, and argv, sys.path, the environment and
# __main__ are the script's.
FRESH = dict(globals())  # of __main__, as an interpreter begins it

import os
import sys

IS_SAFE = getattr(sys.flags, "safe_path", False)  # no folder of the program's is in front
if not IS_SAFE:
    del sys.path[0]  # the working directory: what follows comes from Python itself

import json
import pkgutil
import runpy
import socket
import types
from importlib.machinery import SourceFileLoader, SourcelessFileLoader

WORDS = sys.argv[1:]
IS_MODULE = WORDS[0] == "-m"
SCRIPT = os.path.join(os.getcwd(), WORDS[0])
IS_CONTAINER = not IS_MODULE and pkgutil.get_importer(SCRIPT) is not None  # a folder, a zip file


def place_path():
    if IS_CONTAINER:
        sys.path.insert(0, SCRIPT)
    elif not IS_SAFE:
        sys.path.insert(0, os.getcwd() if IS_MODULE else os.path.dirname(os.path.realpath(SCRIPT)))


def prepare():
    before = dict(os.environ)
    import torch
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data

    try:
        import torch._dynamo  # which the first step of an optimizer imports
    except ImportError:
        pass  # not yet, in old releases
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def told_by(line):
    text = b""
    while not text.endswith(b"\n"):
        more = line.recv(1 << 16)
        if not more:
            os._exit(0)  # nobody needs it
        text += more
    return json.loads(text)


def run():
    sys.argv = WORDS
    if hasattr(sys, "orig_argv"):
        at = sys.orig_argv.index("-c")
        del sys.orig_argv[at : at + 2]
    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    vars(space).update(FRESH)
    if IS_MODULE:
        sys.argv = WORDS[:1] + WORDS[2:]
        return runpy._run_module_as_main(WORDS[1])  # as python -m does
    if IS_CONTAINER:
        return runpy._run_module_as_main("__main__", False)
    is_compiled = SCRIPT.endswith(".pyc")
    loader = (SourcelessFileLoader if is_compiled else SourceFileLoader)("__main__", SCRIPT)
    vars(space).update(__file__=SCRIPT, __loader__=loader)
    if sys.version_info < (3, 15):
        vars(space).update(__cached__=None)
    if is_compiled:
        return exec(loader.get_code("__main__"), vars(space))
    exec(loader.source_to_code(loader.get_data(SCRIPT), SCRIPT), vars(space))  # without a cache


def main():
    with socket.socket(fileno=int(os.environ.pop("RUBATO_SPARE_FD"))) as line:
        place_path()
        prepare()
        line.sendall(b"ready\n")
        variables = told_by(line)
    os.environ.update(variables)
    run()


main()

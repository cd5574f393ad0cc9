"""report(): how far a script is that has no Job."""

import json
import os


def report(step, loss=None, tokens=None):
    """Of runtimes torchrun and command, from any one process: after this many steps, and tokens or samples in all.

    Elsewhere it does nothing, and a Job needs none.
    """
    path = os.environ.get("RUBATO_PROGRESS_FILE")
    if path:
        given = {"step": (int, step), "loss": (float, loss), "tokens": (int, tokens)}
        told = {name: number(value) for name, (number, value) in given.items() if value is not None}
        with open(path, "w") as out:
            print(json.dumps(told), file=out)

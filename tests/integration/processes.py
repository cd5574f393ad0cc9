"""Trees of processes, seen from outside: a pod's processes live in namespaces of their own, but their
parents are ours. Freezing and killing go by process id, parents first, until no new child is found.
"""

import os
import signal

PASSES_MAX = 20  # a tree that grows faster than it is stopped is a defect


def _stat(pid):
    """(state, parent, start time) of a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            words = stat.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return words[0], int(words[1]), int(words[19])


def start_time(pid):
    """Ticks since boot at which the process began: with its id, its name for life. None: gone."""
    seen = _stat(pid)
    return seen[2] if seen else None


def is_alive(pid):
    seen = _stat(pid)
    return seen is not None and seen[0] not in "ZX"


def name_of(pid):
    """The program's name, without its path and arguments; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return os.path.basename(line.read().split(b"\0")[0].decode(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return ""


def id_in_its_namespace(pid):
    """What the process itself calls its id; None: it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[-1]) for line in status if line.startswith("NSpid:"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def tree(root):
    """root and all its living descendants, parents before children."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (seen := _stat(name)) and seen[0] not in "ZX":
            children.setdefault(seen[1], []).append(int(name))
    found = [root] if is_alive(root) else []
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def signal_tree(root, number):
    """Sends a signal to every process of the tree, again until none is new. Returns their ids."""
    reached = set()
    for _ in range(PASSES_MAX):
        new = [pid for pid in tree(root) if pid not in reached]
        if not new:
            break
        for pid in new:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        reached.update(new)
    return reached


def freeze(root):
    """Stops all of the tree: nothing closes, nothing answers."""
    return signal_tree(root, signal.SIGSTOP)


def thaw(root):
    return signal_tree(root, signal.SIGCONT)


def kill(root):
    """The tree is stopped first, so that nobody sees a part of it die."""
    victims = freeze(root)
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return victims

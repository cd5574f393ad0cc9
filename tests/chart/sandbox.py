"""An image's program as a restricted pod would run it: PID 1 of a PID namespace, user 65532, no capabilities, no new
privileges, a read-only root file system with a writable /tmp. The network is the machine's.

    image = Image("build/images/rubato-worker.tar", folder)
    process = image.start(["/usr/bin/rubato-agent"], {"RUBATO_JOB": …}, mounts={"/var/run/rubato/job": folder})
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tarfile

USER = 65532
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 38, 24
CAPABILITIES_MAX = 64
SIGKILL = 9


class Image:
    def __init__(self, archive, folder):
        self.root = pathlib.Path(folder) / "root"
        self.root.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            manifest = json.load(tar.extractfile("manifest.json"))[0]
            self.config = json.load(tar.extractfile(manifest["Config"]))["config"]
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=tar.extractfile(layer)) as inside:
                    inside.extractall(self.root)

    def start(self, command=None, environment=None, mounts=None, **more):
        """A child in its sandbox; `mounts` are folders of this machine, read-only, at paths inside."""
        command = command or self.config["Entrypoint"]
        whole = dict(entry.split("=", 1) for entry in self.config["Env"]) | (environment or {})
        for path in (mounts or {}):
            (self.root / path.lstrip("/").replace("var/run", "run", 1)).mkdir(parents=True, exist_ok=True)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--propagation", "private",
                 sys.executable, __file__, str(self.root), json.dumps(mounts or {}), *command]
        return subprocess.Popen(words, env=whole | {"SANDBOX_ENVIRONMENT": json.dumps(whole),
                                                    "PATH": os.environ["PATH"]},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)

    def run(self, command, limit_s=60, **more):
        process = self.start(command, **more)
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, said


def enter(root, mounts, command):
    """The child's side: mounts, then fewer and fewer rights, then the program."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source, target, kind, flags, data=None):
        words = [word.encode() if word else None for word in (source, target, kind)]
        if libc.mount(*words, flags, data.encode() if data else None) != 0:
            raise OSError(ctypes.get_errno(), f"mounting {target}: {os.strerror(ctypes.get_errno())}")

    mount(root, root, None, MS_BIND | MS_REC)
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    mount("/dev", f"{root}/dev", None, MS_BIND | MS_REC)
    for inside, outside in mounts.items():
        target = root + inside.replace("/var/run", "/run", 1)
        mount(outside, target, None, MS_BIND)
        mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    mount(None, root, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chroot(root)
    os.chdir("/")
    for capability in range(CAPABILITIES_MAX):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([USER])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    environment = json.loads(os.environ["SANDBOX_ENVIRONMENT"])
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    enter(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])

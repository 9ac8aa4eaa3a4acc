"""A limit of what a program may hold in memory."""
import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def own_groups():
    """Folders of this process's control group for memory: of version 1, and of version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield ROOT / "memory" / path.lstrip("/")
        if not controllers:
            yield ROOT / path.lstrip("/")


def limited_group(limit_bytes):
    """A new group below this process's own, and the file that limits it; nothing where none can be made."""
    for own in own_groups():
        group = own / f"sherd-benchmark-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        for name in ("memory.limit_in_bytes", "memory.max"):
            with contextlib.suppress(OSError):
                with open(group / name, "r+") as file:  # not made where it is not there
                    file.write(str(limit_bytes))
                return group, name
        group.rmdir()
    return None


@contextlib.contextmanager
def limited(limit_bytes):
    """The words that go before a command, and what limits it: a control group where one can be made, which kills what goes beyond; else
    RLIMIT_DATA, under which an allocation fails."""
    made = limited_group(limit_bytes)
    if made is None:
        yield ["sh", "-c", f"ulimit -d {limit_bytes // 1024}; exec \"$0\" \"$@\""], "RLIMIT_DATA"
        return
    group, name = made
    try:
        yield ["sh", "-c", f"echo $$ > '{group}/cgroup.procs' && exec \"$0\" \"$@\""], f"a control group ({name})"
    finally:
        group.rmdir()

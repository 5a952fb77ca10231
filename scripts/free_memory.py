"""How much memory this process may still take."""

import resource
from pathlib import Path


def number_in(path, name=""):
    """The number behind `name` in a file such as /proc/meminfo, or the file's only one; None without one."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.removeprefix(name).split()[0])
    except (OSError, ValueError, IndexError):
        pass
    return None


def control_group_rest():
    """Bytes left in the process's control group (containers, batch systems); None without a limit."""
    try:
        group = (
            Path("/sys/fs/cgroup")
            / Path("/proc/self/cgroup").read_text().partition("0::/")[2].splitlines()[0]
        )
    except (OSError, IndexError):
        return None
    limit, used = number_in(group / "memory.max"), number_in(group / "memory.current")
    reclaimable = number_in(group / "memory.stat", "inactive_file ") or 0
    return None if limit is None or used is None else max(0, limit - used + reclaimable)


def address_space_rest():
    """Bytes left under `ulimit -v`; None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = number_in("/proc/self/status", "VmSize:")
    return None if limit == resource.RLIM_INFINITY or used is None else max(0, limit - used * 1024)


def free_memory():
    """Bytes: the least of what the machine, the control group and `ulimit -v` leave; None if none says."""
    machine = number_in("/proc/meminfo", "MemAvailable:")
    limits = [machine and machine * 1024, control_group_rest(), address_space_rest()]
    return min((limit for limit in limits if limit is not None), default=None)

"""A look at the host: processes, mounts, loop devices, cgroups, files. Reads /proc and /sys, changes nothing."""
import os


def read(path, binary=False):
    try:
        with open(path, "rb") as source:
            data = source.read()
    except OSError:
        return b"" if binary else ""
    return data if binary else data.decode(errors="replace")


class Process:
    """A process as it was when it was looked at; `alive` compares the start time, so pids are not confused."""

    def __init__(self, pid):
        self.pid = pid
        self.start = start_time(pid)

    @property
    def alive(self):
        return self.start is not None and start_time(self.pid) == self.start and state(self.pid) not in ("Z", "X")

    @property
    def argv(self):
        return [part.decode(errors="replace") for part in read(f"/proc/{self.pid}/cmdline", True).split(b"\0")[:-1]]

    @property
    def exe(self):
        try:
            return os.readlink(f"/proc/{self.pid}/exe").removesuffix(" (deleted)")
        except OSError:
            return ""

    @property
    def parent(self):
        fields = stat_fields(self.pid)
        return int(fields[1]) if fields else 0

    def status(self):
        """/proc/PID/status as a dictionary."""
        pairs = (line.split(":", 1) for line in read(f"/proc/{self.pid}/status").splitlines() if ":" in line)
        return {name: value.strip() for name, value in pairs}

    def fds(self):
        """What each descriptor is; numbers in sockets and pipes are left out so that lists compare."""
        found = []
        try:
            names = os.listdir(f"/proc/{self.pid}/fd")
        except OSError:
            return found
        for name in names:
            try:
                target = os.readlink(f"/proc/{self.pid}/fd/{name}")
            except OSError:
                continue
            found.append(target.split(":[")[0])
        return sorted(found)

    def memory(self):
        """Bytes by name ("Rss", "Pss", "Private_Dirty"), from smaps_rollup."""
        sizes = {}
        for line in read(f"/proc/{self.pid}/smaps_rollup").splitlines()[1:]:
            name, value = line.split(":")
            sizes[name] = int(value.split()[0]) * 1024
        return sizes

    def __repr__(self):
        return f"{self.pid} {' '.join(self.argv)[:160]}"

    def __eq__(self, other):
        return (self.pid, self.start) == (other.pid, other.start)

    def __hash__(self):
        return hash((self.pid, self.start))


def stat_fields(pid):
    text = read(f"/proc/{pid}/stat")
    return text[text.rindex(")") + 2:].split() if ")" in text else None


def state(pid):
    fields = stat_fields(pid)
    return fields[0] if fields else "X"


def start_time(pid):
    fields = stat_fields(pid)
    return fields[19] if fields else None


def processes():
    return [Process(int(name)) for name in os.listdir("/proc") if name.isdigit()]


def with_argument(*texts):
    """Processes whose command line carries one of the texts."""
    mine = os.getpid()
    return [p for p in processes() if p.pid != mine and state(p.pid) not in ("Z", "X")
            and any(text in argument for argument in p.argv for text in texts)]


def descendants(pid):
    found, todo = [], [pid]
    everyone = processes()
    while todo:
        parent = todo.pop()
        for process in everyone:
            if process.parent == parent:
                found.append(process)
                todo.append(process.pid)
    return found


def mounts(below):
    """Mount points at or below a directory, in any mount namespace this process can see."""
    found = []
    for line in read("/proc/self/mountinfo").splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if point == below or point.startswith(below + "/"):
            found.append(point)
    return sorted(found)


def loops(below):
    """Loop devices backed by a file below a directory."""
    found = []
    for name in os.listdir("/sys/block"):
        backing = read(f"/sys/block/{name}/loop/backing_file").strip()
        if name.startswith("loop") and backing.startswith(below):
            found.append(f"{name} {backing}")
    return sorted(found)


def cgroups(*names):
    """Cgroup directories, of either version, whose path carries one of the names."""
    found = []
    for folder, dirs, _ in os.walk("/sys/fs/cgroup"):
        found += [os.path.join(folder, name) for name in dirs if any(part in name for part in names)]
    return sorted(found)


def listing(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []

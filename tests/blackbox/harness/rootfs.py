"""The tests' template: a root file system of busybox alone, made in a moment."""
import io
import os
import subprocess
import tarfile

BUSYBOX = "/bin/busybox"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"
GROUP = "root:x:0:\nuser:x:1000:\n"
PROFILE = "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"


def busybox_tar(path, extra=None, mtime=1_600_000_000):
    """Writes the archive. extra: {"/path": bytes}. The same arguments give the same bytes."""
    applets = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    with tarfile.open(path, "w") as tar:
        def add(name, kind=tarfile.REGTYPE, mode=0o755, data=b"", link="", uid=0):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.mtime, entry.linkname = kind, mode, mtime, link
            entry.uid = entry.gid = uid
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))

        for name in ("bin", "dev", "etc", "home", "proc", "root", "run", "sys", "usr", "usr/bin", "var", "var/tmp"):
            add(name, tarfile.DIRTYPE)
        add("tmp", tarfile.DIRTYPE, 0o1777)
        add("home/user", tarfile.DIRTYPE, uid=1000)
        with open(BUSYBOX, "rb") as binary:
            add("bin/busybox", data=binary.read())
        for applet in sorted(set(applets) - {"busybox"}):
            add(f"bin/{applet}", tarfile.SYMTYPE, link="busybox")
        for name, text in (("passwd", PASSWD), ("group", GROUP), ("profile", PROFILE)):
            add(f"etc/{name}", mode=0o644, data=text.encode())
        for name, data in sorted((extra or {}).items()):
            add(name.lstrip("/"), data=data)
    return path


def make(folder, extra=None, name="busybox.tar"):
    return busybox_tar(os.path.join(folder, name), extra)

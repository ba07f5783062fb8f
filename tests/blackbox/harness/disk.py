"""File systems of their own for state directories, in images on loop devices."""
import os
import subprocess

from . import server


def mounted(test, mkfs, size):
    """A mounted file system that goes when the test ends. mkfs: the command that makes one, without the image."""
    base = server.temporary()
    test.addCleanup(os.rmdir, base)
    image, path = base + ".img", os.path.join(base, "disk")
    test.addCleanup(os.unlink, image)
    with open(image, "wb") as out:
        out.truncate(size)
    os.mkdir(path)
    test.addCleanup(os.rmdir, path)
    for command in ([*mkfs, image], ["mount", "-o", "loop", image, path]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    test.addCleanup(subprocess.run, ["umount", path], check=True)
    os.chmod(path, 0o755)
    return path

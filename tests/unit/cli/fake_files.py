"""A sandbox's files for the stand-in of the server: a directory of this machine, with faults on request."""
import base64
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile


def problem(status, slug, detail="d"):
    return status, {"type": "urn:space:error:" + slug, "title": "T", "status": status, "detail": detail}, {}


class Tree:
    """Answers the file routes of one sandbox."""

    def __init__(self, server, sandbox="sb_1"):
        self.root = tempfile.mkdtemp(prefix="space-cli-")
        self.archive = None  # bytes to give in place of an honest archive
        self.break_after = None  # bytes after which an answer breaks off
        self.queries = []  # (method, action, query)
        base = f"/v1/sandboxes/{sandbox}/files"
        for method, action in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/stat"), ("GET", "/list"),
                               ("GET", "/archive"), ("PUT", "/archive"), ("POST", "/mkdir"), ("POST", "/copy"),
                               ("POST", "/move"), ("POST", "/chmod"), ("POST", "/symlink")):
            server.answers[(method, base + action)] = self.handler(method, action)

    def close(self):
        shutil.rmtree(self.root, ignore_errors=True)

    def handler(self, method, action):
        function = getattr(self, f"{method.lower()}_{action.strip('/') or 'file'}")

        def handle(query, body):
            asked = query if method != "POST" else json.loads(body)
            self.queries.append((method, action, asked))
            try:
                return function(asked, body)
            except FileNotFoundError:
                return problem(404, "no_such_file")
            except NotADirectoryError:
                return problem(409, "not_directory")
            except IsADirectoryError:
                return problem(409, "is_directory")
            except FileExistsError:
                return problem(409, "exists")

        return handle

    def named(self, query, member="path"):
        if member + "_b64" in query:
            return os.fsencode(self.root) + base64.b64decode(query[member + "_b64"])
        return self.path(query[member])

    def path(self, path):
        """Where a path of the sandbox is; "." and a slash at its end mean what they mean to a kernel."""
        return self.root + path

    def stat(self, path):
        st = os.lstat(path)
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
        return {"type": kinds.get(stat.S_IFMT(st.st_mode), "other"), "size": st.st_size,
                "mode": f"{stat.S_IMODE(st.st_mode):04o}", "uid": st.st_uid, "gid": st.st_gid, "modified_at": "t"}

    def get_stat(self, query, body):
        return 200, dict(self.stat(self.named(query)), path="p"), {}

    def get_list(self, query, body):
        items = [dict(self.stat(os.path.join(self.named(query), name)), name=name, path=name)
                 for name in sorted(os.listdir(self.named(query)))]
        at = int(query.get("cursor", 0))
        after = at + 2
        return 200, {"items": items[at:after], "next_cursor": str(after) if after < len(items) else None}, {}

    def get_file(self, query, body):
        path = self.named(query)
        with open(path, "rb") as f:
            data = f.read()
        about = self.stat(os.path.realpath(path))
        return 200, data, self.extra({"X-Space-Mode": about["mode"], "X-Space-Uid": about["uid"],
                                      "X-Space-Gid": about["gid"]})

    def extra(self, headers):
        return headers if self.break_after is None else dict(headers, **{"X-Break": self.break_after})

    def put_file(self, query, body):
        path = self.named(query)
        if query.get("parents"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(body)
        if "mode" in query:
            os.chmod(path, int(query["mode"], 8))
        return 200, {}, {}

    def delete_file(self, query, body):
        path = self.named(query)
        if query.get("recursive"):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return 204, b"", {}

    def get_archive(self, query, body):
        if self.archive is not None:
            return 200, self.archive, self.extra({})
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(self.named(query), ".")
        return 200, out.getvalue(), self.extra({})

    def put_archive(self, query, body):
        path = self.named(query)
        os.listdir(path)
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            self.entries = tar.getmembers()
            tar.extraction_filter = lambda member, where: member  # as it is, also where that is not the default
            tar.extractall(path)
        return 200, {}, {}

    def post_mkdir(self, query, body):
        (os.makedirs if query.get("parents") else os.mkdir)(self.named(query))
        return 201, {}, {}

    def post_copy(self, query, body):
        source, target = self.named(query, "from"), self.named(query, "to")
        subprocess.run(["cp", "-a", "-T", source, target], check=True)
        return 200, {}, {}

    def post_move(self, query, body):
        if os.path.lexists(self.named(query, "to")) and not query.get("replace"):
            raise FileExistsError
        os.rename(self.named(query, "from"), self.named(query, "to"))
        return 200, {}, {}

    def post_chmod(self, query, body):
        if "mode" in query:
            os.chmod(self.named(query), int(query["mode"], 8))
        return 200, {}, {}

    def post_symlink(self, query, body):
        os.symlink(query["target"], self.named(query))
        return 201, {}, {}

"""What tests of files share: queries, listings, trees made in a moment."""
import base64
import os
import urllib.parse


def b64(path):
    return base64.b64encode(path).decode()


def query(sb, kind, path, **more):
    """The URL of files/KIND?path=..., of files?path=... with kind None; a path of bytes goes as path_b64."""
    name = {"path_b64": b64(path)} if isinstance(path, bytes) else {"path": path}
    return f"{sb.path}/files{'/' + kind if kind else ''}?" + urllib.parse.urlencode({**name, **more})


def listing(sb, path, **more):
    """All entries, page by page."""
    return sb.api.pages(query(sb, "list", path, **{k: v for k, v in more.items() if k != "limit"}), more.get("limit"))


def raw(item, name="path"):
    """A name's bytes, however they came."""
    return base64.b64decode(item[f"{name}_b64"]) if f"{name}_b64" in item else item[name].encode()


def names(sb, path, **more):
    """Paths relative to the directory, as bytes, in the order in which they came."""
    base = path if isinstance(path, bytes) else path.encode()
    return [os.path.relpath(raw(item), base) for item in listing(sb, path, **more)]


def act(sb, verb, status=None, **body):
    """POST files/VERB; its answer."""
    return sb.api.ok("POST", f"{sb.path}/files/{verb}", body, status=status)


def refused(sb, verb, status, slug, **body):
    return sb.api.problem("POST", f"{sb.path}/files/{verb}", body, status=status, slug=slug)


def workers(sb):
    """Processes in the guest that work on files: each is a child of the agent with the agent's name."""
    lines = sb.sh("ps -o pid,args").splitlines()[1:]
    return [line for line in lines if line.split()[1:] == ["/init"] and line.split()[0] != "1"]

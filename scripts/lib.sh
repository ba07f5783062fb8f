# Shared by the scripts: messages, and who builds. Sourced, not run.
# shellcheck shell=bash

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"

BUILD=${BUILD:-build}
STATE_DIR=$(realpath -ms "${STATE_DIR:-/var/lib/space}")
LISTEN=${LISTEN:-127.0.0.1:7780}
export PYTHONDONTWRITEBYTECODE=1
# For commands that people are told to type. A container's root often has no sudo, and needs none.
if [ "$(id -u)" = 0 ] && ! command -v sudo >/dev/null; then sudo=; else sudo="sudo "; fi

say() { printf '%s\n' "==> $*"; }
note() { printf '%s\n' "    $*"; }

# die MESSAGE [WHAT TO DO]...: what went wrong, then what to do about it.
die() {
    printf 'error: %s\n' "$1" >&2
    shift
    local line
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

need_root() {
    [ "$(id -u)" = 0 ] || die "$1 needs root: it installs packages and starts virtual machines." "Run: sudo make $1"
}

# Whether root works in somebody else's checkout that its owner can write.
foreign_checkout() {
    owner=$(stat -c %u .)
    group=$(stat -c %g .)
    [ "$(id -u)" = 0 ] && [ "$owner" != 0 ] &&
        setpriv --reuid "$owner" --regid "$group" --clear-groups test -w . 2>/dev/null
}

# Gives the build directory, and the examples' run directories, to the owner of the checkout, so that what root did
# there is not in the way of a later build without root.
return_build() {
    local dir
    foreign_checkout || return 0
    for dir in "$BUILD" run; do
        [ ! -d "$dir" ] || chown -R "$owner:$group" "$dir"
    done
}

# Runs a command as the owner of the checkout when root builds somebody else's.
as_owner() {
    if ! foreign_checkout; then
        "$@"
        return
    fi
    return_build
    local home
    home=$(getent passwd "$owner" | cut -d: -f6 || true)
    [ -d "$home" ] || home=/nonexistent
    HOME=$home setpriv --reuid "$owner" --regid "$group" --clear-groups "$@"
}

# Where the build leaves a program: program spaced/spaced.
program() { case $BUILD in /*) printf "%s\n" "$BUILD/src/$1" ;; *) printf "%s\n" "$top/$BUILD/src/$1" ;; esac; }

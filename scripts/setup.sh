#!/bin/bash
# Installs what the build and the server need from the distribution's own packages: only what is missing, and
# without removing anything. --dev adds what the checks of .ci/run need; --bench what `make bench` needs; --list only
# prints the names.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# "a|b": either will do.
build=(gcc libc6-dev make pkg-config\|pkgconf meson ninja-build libmicrohttpd-dev libwslay-dev libjansson-dev
    libsqlite3-dev "libcurl4-openssl-dev|libcurl4-gnutls-dev|libcurl4-nss-dev" libssl-dev libseccomp-dev
    libcap-ng-dev libmnl-dev libarchive-dev libzstd-dev libcmocka-dev uthash-dev)
runtime=(qemu-system-x86 mmdebstrap busybox-static "e2fsprogs" btrfs-progs nftables iproute2 kmod cpio
    ca-certificates curl python3 util-linux zstd xz-utils)
bench=(wrk)
dev=(clang clang-tidy clang-format llvm valgrind mandoc git xfsprogs vim less tmux htop)

want=("${build[@]}" "${runtime[@]}")
for arg in "$@"; do
    case $arg in
    --dev) want+=("${dev[@]}" "${bench[@]}") && dev_wanted=1 ;;
    --bench) want+=("${bench[@]}") ;;
    --list) # what a new machine needs, one name for each
        printf '%s\n' "${want[@]%%|*}" linux-image-cloud-amd64
        exit 0
        ;;
    *) die "unknown option $arg" "usage: scripts/setup.sh [--dev] [--bench] [--list]" ;;
    esac
done

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    die "this machine has no apt: only Debian and Ubuntu are set up automatically." \
        "Install these yourself, then run make: ${want[*]}"
[ "$(dpkg --print-architecture)" = amd64 ] ||
    die "the architecture is $(dpkg --print-architecture); amd64 is needed."

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# The first alternative is what gets installed when none is there.
lacks() {
    local name
    for name in ${1//|/ }; do
        if installed "$name"; then return 1; fi
    done
}

# A guest kernel is a kernel in /boot whose modules are there and that knows virtio over mmio.
usable_kernel() {
    local image release dir driver
    for image in /boot/vmlinuz-*; do
        release=${image#/boot/vmlinuz-}
        dir=/lib/modules/$release
        [ -s "$image" ] && [ -f "$dir/modules.dep" ] || continue
        for driver in virtio_mmio virtio_blk virtio_console ext4; do
            grep -qs "/$driver\.ko" "$dir/modules.dep" "$dir/modules.builtin" || continue 2
        done
        printf '%s\n' "$release"
        return 0
    done
    return 1
}

missing=()
for spec in "${want[@]}"; do
    if lacks "$spec"; then missing+=("${spec%%|*}"); fi
done

if kernel=$(usable_kernel); then
    note "guest kernel: $kernel (already in /boot)"
else
    # shellcheck disable=SC1091
    . /etc/os-release
    case " ${ID:-} ${ID_LIKE:-} " in
    *" ubuntu "*) package=linux-image-virtual ;;
    *) package=linux-image-cloud-amd64 ;;
    esac
    # A machine with a boot loader would boot the newest kernel next time: that is its owner's decision.
    if [ -d /boot/grub ] || [ -d /boot/loader ] || [ -d /boot/extlinux ]; then
        [ "${KERNEL:-}" = install ] ||
            die "no kernel in /boot is usable for guests (with modules virtio_mmio, virtio_blk, virtio_console, ext4)." \
                "$package has one, but installing it also adds it to this machine's boot menu, maybe as the default." \
                "If that is fine: ${sudo}make setup KERNEL=install" \
                "If not, unpack one elsewhere and set 'kernel' and 'modules' in the server's configuration."
    fi
    note "no guest kernel in /boot: $package will be installed"
    missing+=("$package")
fi

apt_install() {
    [ "$(id -u)" = 0 ] || die "missing packages: $*" "Run: sudo make setup"
    say "installing $# packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    # The package index may be missing (containers) or too old for its files to be still there.
    local get=(apt-get -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    "${get[@]}" update </dev/null ||
        die "apt-get update failed." "Check the network and /etc/apt/sources.list*, then run make again."
    "${get[@]}" install --no-remove --no-install-recommends "$@" </dev/null ||
        die "apt-get could not install: $*" \
            "On Ubuntu these need the 'universe' component: ${sudo}add-apt-repository universe" \
            "Then run make again; what is installed already is kept."
}

[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"

# The sanitizers' runtime for clang is a package of its own, named by clang's version, on some releases.
if [ -n "${dev_wanted:-}" ]; then
    version=$(clang -dumpversion | cut -d. -f1)
    runtime_package=libclang-rt-$version-dev
    if ! installed "$runtime_package" && apt-cache show "$runtime_package" >/dev/null 2>&1; then
        apt_install "$runtime_package"
    fi
fi
say "all packages are there"

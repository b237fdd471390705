#!/bin/sh
# SPDX-License-Identifier: MIT
# bare.sh [demo|test|demo-lm]: what somebody with a bare Debian 12 sees. Makes one in a temporary folder (apt,
# git, make and ca-certificates, nothing else, from this machine's package sources), clones HEAD into it and
# runs `make demo`, then `make test`, or only the one named. Needs root and mmdebstrap; outside CI it says so
# and passes where it lacks them.
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)

cannot()
{
    [ -z "${CI:-}" ] || { echo "bare: $1" >&2; exit 1; }
    echo "skipped: $1"
    exit 0
}

# As root in namespaces of its own: $1 the folder, then what to make. Mounts and processes go when this shell
# does.
inside()
{
    bare=$1
    shift
    begun=$(date +%s)
    # Of the machine's sources those of this Debian; where it is another one, mmdebstrap knows where Debian
    # lies.
    sources=$(grep -ls bookworm /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
        /etc/apt/sources.list.d/*.sources || true)
    apt-config dump | grep '^Acquire::' >"$bare/apt.conf" || true
    # shellcheck disable=SC2086
    mmdebstrap --quiet --variant=apt --include=git,make,ca-certificates --aptopt="$bare/apt.conf" \
        bookworm "$bare/root" $sources
    mount -t proc proc "$bare/root/proc"
    # Terminals of its own: a test opens one.
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$bare/root/dev/pts"
    ln -sf pts/ptmx "$bare/root/dev/ptmx"
    # Whom this machine trusts: where a proxy stands between it and PyPI, its certificate too.
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] ||
        cp -L /etc/ssl/certs/ca-certificates.crt "$bare/root/etc/ssl/certs/ca-certificates.crt"
    git clone --quiet --depth 1 "file://$tree" "$bare/root/loam"
    times="a bare Debian $(cat "$bare/root/etc/debian_version"): $(($(date +%s) - begun)) s"

    for target; do
        echo "bare: make $target"
        begun=$(date +%s)
        chroot "$bare/root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
            ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
            ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} make --no-print-directory -C /loam "$target"
        times="$times, make $target: $(($(date +%s) - begun)) s"
    done
    echo "$times"
}

case ${1:-} in
    '') targets='demo test' ;;
    demo | test | demo-lm) targets=$1 ;;
    --inside)
        shift
        inside "$@"
        exit
        ;;
    *)
        echo "usage: tools/bare.sh [demo|test|demo-lm]" >&2
        exit 2
        ;;
esac
[ "$(id -u)" = 0 ] || cannot "not root, which a new root folder needs"
command -v mmdebstrap >/dev/null || cannot "no mmdebstrap here: apt-get install mmdebstrap"
unshare --mount --pid --fork true 2>/dev/null || cannot "this root may not mount"

place=$(mktemp -d "${TMPDIR:-/tmp}/loam-bare.XXXXXX")
chmod 755 "$place"
child=
clean()
{
    # The first process of a PID namespace hears nothing else.
    [ -z "$child" ] || kill -KILL "$child" 2>/dev/null || true
    wait
    rm -rf --one-file-system "$place"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
# shellcheck disable=SC2086
unshare --mount --pid --fork --kill-child "$0" --inside "$place" $targets &
child=$!
status=0
wait "$child" || status=$?
child=
exit "$status"

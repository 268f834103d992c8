#!/bin/sh
# Installs the Debian packages that a target needs and that are missing; says which.
# usage: tools/setup.sh run|test|check
# As root it installs directly, else through sudo. On other systems it only says what it looked for.
set -eu

target=${1:-run}
packages="gcc libc6-dev cmake ninja-build pkg-config libevent-dev libjansson-dev libyaml-dev libxxhash-dev"
case $target in
run) ;;
test) packages="$packages libcmocka-dev chromium git curl" ;;
check) packages="$packages libcmocka-dev chromium git curl clang clang-tidy clang-format libclang-rt-14-dev" ;;
*) echo "usage: tools/setup.sh run|test|check" >&2; exit 2 ;;
esac
# Node builds the web page and runs the tests' clients; one that is already there will do.
command -v node >/dev/null 2>&1 || packages="$packages nodejs"
command -v npm >/dev/null 2>&1 || packages="$packages npm"

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "setup: not a Debian system; these packages (Debian's names) must be there: $packages" >&2
    exit 0
fi

missing=
for p in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "setup: missing packages:$missing" >&2
        echo "setup: install them as root: apt-get update && apt-get install -y --no-install-recommends$missing" >&2
        exit 1
    fi
    as_root=sudo
fi
echo "setup: installing missing packages:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
    "$@" >"$log" 2>&1 || { cat "$log" >&2; echo "setup: failed: $*" >&2; exit 1; }
}
quietly $as_root apt-get update
# shellcheck disable=SC2086
quietly $as_root apt-get install -y --no-install-recommends $missing
echo "setup: done"

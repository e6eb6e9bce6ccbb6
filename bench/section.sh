#!/bin/sh
# Builds a release, starts a server on an empty embedded store and a free port, and measures whole
# sections with 1, 16 and 64 workers: on a key for each, then on one key for all. Before and after, the
# disk is measured by synced appends of 4 KiB. The server is stopped and its data removed at the end.
#
#   bench/section.sh                      the usual
#   bench/section.sh --short              the same in two calls a section
#   bench/section.sh --duration 30s       any other flag of `fermata-bench section`
#   DATA=/mnt/disk bench/section.sh       data on another disk (it must not be a tmpfs)
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
cargo build --release --locked -p fermata-lock -p fermata-bench --bins
release=${CARGO_TARGET_DIR:-target}/release

data=$(mktemp -d "${DATA:-$root/target}/bench.XXXXXX")
server=
clean_up() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$data"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$release/fermata" serve --listen 127.0.0.1:0 --data-dir "$data/store" >"$data/greeting" 2>"$data/log" &
server=$!
endpoint=
for _ in $(seq 100); do
    endpoint=$(sed -n 's/^listening on //p' "$data/greeting" | head -n 1)
    [ -n "$endpoint" ] && break
    if ! kill -0 "$server" 2>/dev/null; then
        break
    fi
    sleep 0.1
done
if [ -z "$endpoint" ]; then
    echo "the server did not start:" >&2
    cat "$data/log" >&2
    exit 1
fi

uname -srm
nproc | sed 's/$/ cores/'
git log -1 --format='commit %h of %cs' 2>/dev/null || true
probe() {
    echo
    echo "1000 appends of 4 KiB, each synced:"
    dd if=/dev/zero of="$data/probe" bs=4k count=1000 oflag=dsync 2>&1 | tail -n 1
}
probe
for keys in own one; do
    echo
    "$release/fermata-bench" section --endpoint "$endpoint" --workers 1,16,64 --keys "$keys" "$@"
done
probe

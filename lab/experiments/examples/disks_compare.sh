#!/bin/bash
# Compares servers of many small disks: how long until the last disk can be read, and memory.
# millrace and qemu-storage-daemon serve an export for each file; millrace and nbdkit a directory.
# usage: disks_compare.sh [MILLRACE [DISKS ...]], with 1000 and 10000 disks unless told otherwise
set -eu
millrace=$(command -v "${1:-millrace}")
millrace=$(realpath "$millrace")
shift $(($# > 0))
dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# NAME COUNT COMMAND...: starts a server that listens on NAME.sock, and leaves it running.
start() {
    local name=$1 count=$2 begin uri
    shift 2
    uri="nbd+unix:///disk-$count?socket=$dir/$name.sock"
    begin=$(now_ms)
    (cd images && exec "$@") >/dev/null 2>&1 &
    pid=$!
    until nbdinfo --size "$uri" >/dev/null 2>&1; do
        kill -0 "$pid" || { echo "$name with $count disks ended"; exit 1; }
    done
    local rss
    rss=$(awk '/VmRSS/ { print $2 }' "/proc/$pid/status")
    echo "$count disks: $name: ready in $(($(now_ms) - begin)) ms, RSS $((rss / 1024)) MiB," \
        "$((rss / count)) KiB per disk"
}

stop() {
    kill "$pid"
    wait "$pid" || true
    pid=
}

# WHAT COMMAND...: says how long a command takes.
timed() {
    local what=$1 begin
    shift
    begin=$(now_ms)
    "$@" >/dev/null
    echo "    $what: $(($(now_ms) - begin)) ms"
}

[ $# -gt 0 ] || set -- 1000 10000
for count; do
    rm -rf images
    mkdir images
    seq -f "images/disk-%.0f" "$count" | xargs truncate -s 1M
    control="control = \"unix:$dir/control\""
    {
        printf '[server]\n%s\n' "$control"
        for name in $(seq -f "disk-%.0f" "$count"); do
            printf '[[drive]]\nname = "%s"\nspec = "file:path=%s"\n' "$name" "$dir/images/$name"
            printf '[[volume]]\nname = "%s"\ndrives = ["%s"]\n' "$name" "$name"
            printf '[[export]]\nvolume = "%s"\nnbd = "unix:%s"\n' "$name" "$dir/millrace.sock"
        done
    } >each.toml
    printf '[server]\n%s\n[[export]]\ndirectory = "%s"\nnbd = "unix:%s"\n' "$control" \
        "$dir/images" "$dir/directory.sock" >directory.toml
    start millrace "$count" "$millrace" serve "$dir/each.toml"
    timed "stat" "$millrace" stat --connect "unix:$dir/control"
    truncate -s 1M added
    add() { "$millrace" ctl add "$@" --connect "unix:$dir/control"; }
    timed "ctl add drive" add drive added "spec=file:path=$dir/added"
    timed "ctl add volume" add volume added drives=added
    timed "ctl add export" add export added volume=added "nbd=unix:$dir/millrace.sock"
    timed "its first answer" nbdinfo --size "nbd+unix:///added?socket=$dir/millrace.sock"
    stop
    start directory "$count" "$millrace" serve "$dir/directory.toml"
    stop
    # Arguments in short names from within the folder: a program's arguments have 2 MiB.
    start qemu "$count" qemu-storage-daemon \
        --nbd-server "addr.type=unix,addr.path=$dir/qemu.sock,max-connections=0" \
        $(seq -f "disk-%.0f" "$count" | sed 's/.*/--blockdev driver=file,node-name=&,filename=& --export type=nbd,id=&,node-name=&,name=&/')
    stop
    start nbdkit "$count" nbdkit -f -U "$dir/nbdkit.sock" file "dir=$dir/images"
    stop
done

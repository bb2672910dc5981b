#!/bin/busybox sh
# The first program of a guest. Serial port 0 has what the kernel and this script say, port 1 is the
# test's: a command a line, run by a shell of its own, its output, and a line with its status.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mkdir -p /mnt
while read -r module; do
    insmod "/modules/$module"
done </modules/order
# Should the test be gone, so is the guest after a while.
(sleep 1800 && echo "init: the guest has run for too long" && poweroff -f) &
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
echo "<<<ready>>>"
while read -r line; do
    (eval "$line") </dev/null
    echo "<<<status $?>>>"
done

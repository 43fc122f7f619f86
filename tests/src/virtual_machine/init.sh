#!/bin/busybox sh
# The guest's only program: makes a file system, or writes to one and says on the console what is synced.
/bin/busybox mkdir -p /proc /sys /dev /mnt /etc
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio virtio_pci virtio_blk; do
    insmod /modules/$module.ko || echo "FAILED insmod $module"
done
until [ -b /dev/vda ]; do sleep 0.1; done

# Of the same content wherever it is made: see `content` of the harness.
content() { yes "line of file $1" | head -c $((1000 + $1 * 977 % 60000)); }

fail() { echo "FAILED $*"; poweroff -f; }

case "$work" in
make)
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda || fail mkfs
    mount -t ext4 /dev/vda /mnt || fail mount
    content 0 > /mnt/file0
    umount /mnt || fail umount
    echo "MADE"
    poweroff -f
    ;;
write)
    mount -t ext4 /dev/vda /mnt || fail mount
    content 0 | cmp - /mnt/file0 || fail "file 0 is not that of the origin"
    echo "MOUNTED"
    file=0
    while [ $file -lt 6000 ]; do
        file=$((file + 1))
        content $file | dd of=/mnt/file$file bs=64k conv=fsync 2>/dev/null || fail "file $file"
        printf '%08d' $file | dd of=/mnt/last bs=8 conv=notrunc,fsync 2>/dev/null || fail "last $file"
        echo "SYNCED $file"
    done
    echo "DONE"
    ;;
*) fail "no work" ;;
esac
while :; do sleep 1000; done

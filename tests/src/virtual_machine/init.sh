#!/bin/busybox sh
# The first program of the initramfs: loads what the disk needs, and goes on with the disk's own init.
/bin/busybox mkdir -p /proc /sys /dev /disk
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
fail() { echo "FAILED $*" > /dev/ttyS0; poweroff -f; }
for module in virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio virtio_pci virtio_blk; do
    insmod /modules/$module.ko || fail "insmod $module"
done
until [ -b /dev/vda ]; do sleep 0.1; done
mount -t ext4 /dev/vda /disk || fail mount
umount /proc /sys
exec switch_root /disk /sbin/init

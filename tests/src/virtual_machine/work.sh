#!/bin/sh
# The guest's service: finds what an earlier run has synced, then makes files and reports each that is synced. Beside it fio writes
# at random places, past the page cache and without a flush, and verifies what it finds. It is slow, so that most kills meet
# writes; between two files there is a pause, so that writes are acknowledged that no flush has followed. Each block has the
# number of the pass, since one of the pass before would have a valid checksum.
exec > /dev/ttyS0 2>&1

fail() { echo "FAILED $*"; poweroff -f; }

# Of the same content wherever it is made: see `content` of the harness.
content() { yes "line of file $1" | head -c $((1000 + $1 * 977 % 60000)); }

verify() {
    pass=0
    while :; do
        pass=$((pass + 1))
        /work/fio/ld.so --library-path /work/fio /work/fio/fio --name=verify --filename=/work/verified --size=2m \
            --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8 --direct=1 --rate_iops=,200 --randseed=$pass \
            --do_verify=1 --verify=pattern --verify_pattern="0x$(printf %08x $pass)%o" --verify_fatal=1 \
            --eta=never > /run/fio 2>&1 || fail "fio, pass $pass: $(tr '\n' ' ' < /run/fio)"
        echo "VERIFIED $pass"
    done
}

cd /work/files || fail "no folder"
last=$(sed 's/^0*//' last) || fail "no last file"
last=${last:-0}
file=0
while [ "$file" -le "$last" ]; do
    content "$file" | cmp -s - "file$file" || fail "file $file of $last"
    file=$((file + 1))
done
echo "WORKING $last"

verify &
while [ "$file" -lt 3000 ]; do
    content "$file" | dd of="file$file" bs=64k iflag=fullblock conv=fsync 2> /dev/null || fail "file $file"
    printf '%08d' "$file" | dd of=last bs=8 conv=notrunc,fsync 2> /dev/null || fail "last $file"
    echo "SYNCED $file"
    file=$((file + 1))
    sleep 0.4
    echo "PAUSED"
done
wait

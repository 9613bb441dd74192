# Functions that run the virtual machine and talk to it. Sourced by `run`. Needs $dir, the directory of `build`.

PORT=${VM_PORT:-2222}
ssh_options=(-q -i "$dir/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20
    -o ControlMaster=auto -o ControlPersist=600 -o "ControlPath=$dir/ssh-%p")

# Boots the machine on its present disk, and waits until it accepts logins. Further arguments are for its kernel.
boot() {
    # A hardware accelerator is not the default: some hosts have a /dev/kvm that does not work.
    setsid qemu-system-x86_64 -accel "${VM_ACCEL:-tcg,thread=multi}" -cpu "${VM_CPU:-max}" -smp 2 -m "${VM_MEMORY:-2G}" \
        -kernel "$dir/kernel" -initrd "$dir/initrd" -append "root=/dev/vda rw console=ttyS0 net.ifnames=0 $*" \
        -drive "file=$dir/disk.img,if=virtio,format=raw,cache=writeback" -device virtio-net-pci,netdev=net \
        -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$PORT-:22" -display none -no-reboot \
        -serial "file:$dir/console.log" >"$dir/qemu.log" 2>&1 </dev/null &
    echo $! >"$dir/pid"
    # So that the shell does not report a power cut as a killed job.
    disown
    local deadline=$((SECONDS + 600))
    until ssh "${ssh_options[@]}" -p "$PORT" root@127.0.0.1 true 2>/dev/null; do
        kill -0 "$(cat "$dir/pid")" || { cat "$dir/qemu.log"; fail "the machine did not start"; }
        [ $SECONDS -lt $deadline ] || { tail -n 5 "$dir/console.log"; fail "the machine did not boot within 10 minutes"; }
        sleep 2
    done
}

# Whether the machine runs.
is_up() { [ -f "$dir/pid" ] && kill -0 "$(cat "$dir/pid")" 2>/dev/null; }

forget_connection() { ssh "${ssh_options[@]}" -p "$PORT" -O exit root@127.0.0.1 2>/dev/null || true; }

# Cuts the power: what the machine did not write to its disk is lost.
cut_power() {
    forget_connection
    kill -KILL "$(cat "$dir/pid")"
    while is_up; do sleep 0.2; done
}

# Shuts the machine down in order, within the given seconds.
power_off() {
    guest 'systemctl poweroff --no-block'
    forget_connection
    local deadline=$((SECONDS + ${1:-300}))
    while is_up; do
        [ $SECONDS -lt $deadline ] || fail "the machine did not shut down within ${1:-300} s"
        sleep 1
    done
}

# Runs commands in the machine, with the functions of guest/lib.sh.
guest() { { echo '. /opt/vm/lib.sh'; echo "$1"; } | ssh "${ssh_options[@]}" -p "$PORT" root@127.0.0.1 bash -euo pipefail -s; }

# Copies files into the machine: FILE... DIRECTORY.
push() { tar -cf - -C "$(dirname "$1")" "$(basename "$1")" | ssh "${ssh_options[@]}" -p "$PORT" root@127.0.0.1 "mkdir -p $2 && tar -xf - -C $2"; }

# Prints what a check has seen.
say() { echo "    $*"; }

fail() {
    echo "    FAILED: $*" >&2
    if is_up && [ -S "$dir/ssh-$PORT" ]; then
        guest 'journalctl --no-pager --unit podwright --lines 40 --output cat' >&2 || true
    fi
    exit 1
}

# Fails unless the value is the expected one: WHAT VALUE EXPECTED.
expect() {
    [ "$2" = "$3" ] || fail "$1 is '$2', expected '$3'"
    say "$1: $2"
}

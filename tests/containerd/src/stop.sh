#!/bin/sh
# Ends a containerd of these tests with all that it runs, once no test holds its turn. Needs nothing of the tests, so that
# a run that was killed leaves nothing behind either. Only processes and mounts that name the directory are touched.
# Usage: stop.sh DIRECTORY CGROUP [now], where CGROUP is the root of the cgroups of its pods, such as /podwright-tests-0
base=$1
root=$2

pids() {
    for file in /proc/[0-9]*/cmdline; do
        # Split by NULs, so that the directory is a whole word or the beginning of one.
        if tr '\0' '\n' < "$file" 2>/dev/null | grep -q "^$base/" && [ "${file#/proc/$$/}" = "$file" ]; then
            pid=${file#/proc/}
            case $(tr '\0' ' ' < "$file") in
                containerd*"$base"/*|*/containerd-shim*"$base"/*) echo "${pid%/cmdline}" ;;
            esac
        fi
    done
}

end() {
    groups=
    if [ -S "$base/c.sock" ]; then
        ctl="timeout 10 ctr --address $base/c.sock --namespace k8s.io"
        # The cgroup of a pod stays when its shim is killed, so it is removed below.
        groups=$(for id in $($ctl containers ls -q); do $ctl containers info "$id"; done |
            sed -n 's/.*"cgroupsPath": "\(.*\)".*/\1/p')
        for task in $($ctl tasks ls -q 2>/dev/null); do
            $ctl tasks kill -s KILL "$task"
        done
    fi
    # A shim adopts the processes that its containers leave behind, so all of them are its children.
    for pid in $(pids); do
        for child in $(cat "/proc/$pid/task/$pid/children"); do kill -KILL "$child"; done
        kill -KILL "$pid"
    done
    for group in $groups; do
        rmdir "/sys/fs/cgroup$group" /sys/fs/cgroup/*"$group"
        case ${group%/*} in
            */kubepods/*pod*) rmdir "/sys/fs/cgroup${group%/*}" /sys/fs/cgroup/*"${group%/*}" ;;
        esac
    done
    find "/sys/fs/cgroup$root" /sys/fs/cgroup/*"$root" -depth -type d -exec rmdir {} \;
    # A mount may be on top of another one, so the mounts are removed in reverse order.
    for mount in $(awk -v base="$base/" 'index($5, base) == 1 { print $5 }' /proc/self/mountinfo | sort -r); do
        umount -l "$mount"
    done
    rm -rf "${base:?}/run"
} >/dev/null 2>&1

if [ "$3" = now ]; then
    end
    exit
fi
while :; do
    # The next test may be about to take its turn.
    sleep 3
    exec 9>>"$base.turn"
    if flock -n 9; then
        end
        exit
    fi
    exec 9>&-
done

//! The system calls of a container with the seccomp profile `RuntimeDefault`. Each container runtime has a list of its own for this
//! profile.
//!
//! There are two filters. The first one has the calls that a container gets. Every other call fails as on a kernel that does not have it
//! (`ENOSYS`), and a program then uses an older call. So calls of later kernels are not available, and neither is `clone3`, whose flags
//! a filter cannot read.
//!
//! The second filter refuses calls for a lack of rights (`EPERM`), which is what programs expect of them: calls that the first filter does
//! not have either, and some arguments of calls that it has. The kernel runs both filters. If both refuse a call, the error is that of
//! the filter that was installed last.
//!
//! Both know the calls of the machine's own architecture only. The kernel kills a process that makes a call of another one, such as a
//! 32-bit program.

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// Installs the filters for this thread and the programs that it executes.
pub(super) fn install() -> Result<(), Error> {
    apply_filter(&offered()?)?;
    apply_filter(&refused()?)
}

/// The system calls of these names.
macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// The first filter.
fn offered() -> Result<BpfProgram, BackendError> {
    let rules = OFFERED.iter().chain(OFFERED_OLD).copied().chain(OFFERED_NEW).map(|call| (call, Vec::new()));
    let filter = SeccompFilter::new(
        rules.collect(),
        error(Errno::NOSYS),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

/// The second filter.
fn refused() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().chain(REFUSED_OLD).map(|call| (*call, Vec::new())).collect();
    let any_of = |comparisons: &[SeccompCmpOp], values: &[u64]| {
        let conditions = comparisons.iter().zip(values).map(|(comparison, value)| condition(comparison, *value));
        conditions.map(|one| SeccompRule::new(vec![one?])).collect::<Result<Vec<_>, _>>()
    };
    let namespaces = NAMESPACES.map(SeccompCmpOp::MaskedEq);
    rules.insert(libc::SYS_clone, any_of(&namespaces, &NAMESPACES)?);
    rules.insert(libc::SYS_socket, any_of(&[SeccompCmpOp::Eq, SeccompCmpOp::Eq], &FAMILIES)?);
    let other =
        PERSONALITIES.iter().map(|known| condition(&SeccompCmpOp::Ne, *known)).collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_personality, vec![SeccompRule::new(other)?]);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, error(Errno::PERM), std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

fn error(error: Errno) -> SeccompAction {
    SeccompAction::Errno(error.raw_os_error().unsigned_abs())
}

/// A comparison of the first argument of a call. The kernel ignores the upper half of the arguments that are compared here.
fn condition(comparison: &SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(0, SeccompCmpArgLen::Dword, comparison.clone(), value)
}

/// The flags of `clone` for namespaces: mounts, cgroups, host name, IPC, users, processes and network. In a user namespace, a process has
/// every capability, and with it the parts of the kernel that are otherwise for root.
const NAMESPACES: [u64; 7] = [
    0x0002_0000, // CLONE_NEWNS
    0x0200_0000, // CLONE_NEWCGROUP
    0x0400_0000, // CLONE_NEWUTS
    0x0800_0000, // CLONE_NEWIPC
    0x1000_0000, // CLONE_NEWUSER
    0x2000_0000, // CLONE_NEWPID
    0x4000_0000, // CLONE_NEWNET
];

/// The address families that containers do not get: the ciphers of the kernel (`AF_ALG`), and the sockets of virtual machines (`AF_VSOCK`),
/// which lead to the host of the node.
const FAMILIES: [u64; 2] = [38, 40];

/// The personalities that a program may have: Linux, Linux with the old version number, each also in the 32-bit form, and the question
/// for the current one. Others turn off protections of the memory.
const PERSONALITIES: [u64; 5] = [0, 0x0008, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Files, memory, processes, signals, time, sockets, queues, and the rights of the process itself. For the calls that need a capability,
/// such as `chown`, the capabilities of the container decide.
const OFFERED: &[i64] = calls![
    // Files.
    SYS_chdir SYS_chroot SYS_close SYS_close_range SYS_copy_file_range SYS_dup SYS_dup3 SYS_faccessat SYS_faccessat2
    SYS_fadvise64 SYS_fallocate SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_fcntl SYS_fdatasync SYS_flock
    SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_getcwd SYS_getdents64 SYS_ioctl SYS_linkat SYS_lseek SYS_mkdirat SYS_mknodat
    SYS_newfstatat SYS_openat SYS_openat2 SYS_pipe2 SYS_pread64 SYS_preadv SYS_preadv2 SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read
    SYS_readahead SYS_readlinkat SYS_readv SYS_renameat SYS_renameat2 SYS_sendfile SYS_splice SYS_statfs SYS_statx SYS_symlinkat
    SYS_sync SYS_sync_file_range SYS_syncfs SYS_tee SYS_truncate SYS_umask SYS_unlinkat SYS_utimensat SYS_vmsplice SYS_write SYS_writev
    SYS_fgetxattr SYS_flistxattr SYS_fremovexattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_listxattr SYS_llistxattr
    SYS_lremovexattr SYS_lsetxattr SYS_removexattr SYS_setxattr
    // Events.
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_fanotify_mark SYS_inotify_add_watch
    SYS_inotify_init1 SYS_inotify_rm_watch SYS_io_cancel SYS_io_destroy SYS_io_getevents SYS_io_setup SYS_io_submit SYS_ppoll
    SYS_pselect6 SYS_signalfd4
    // Memory.
    SYS_brk SYS_madvise SYS_membarrier SYS_memfd_create SYS_memfd_secret SYS_mincore SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap
    SYS_mprotect SYS_mremap SYS_mseal SYS_msync SYS_munlock SYS_munlockall SYS_munmap SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect
    SYS_remap_file_pages
    // Processes and threads.
    SYS_clone SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_futex SYS_futex_waitv SYS_get_robust_list SYS_getcpu SYS_getpgid
    SYS_getpid SYS_getppid SYS_getpriority SYS_getrlimit SYS_getrusage SYS_getsid SYS_gettid SYS_ioprio_get SYS_ioprio_set
    SYS_personality SYS_pidfd_open SYS_prctl SYS_prlimit64 SYS_process_mrelease SYS_rseq SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler
    SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam SYS_sched_setscheduler SYS_sched_yield
    SYS_set_robust_list SYS_set_tid_address SYS_setpgid SYS_setpriority SYS_setrlimit SYS_setsid SYS_wait4 SYS_waitid
    // Signals.
    SYS_kill SYS_pidfd_send_signal SYS_restart_syscall SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigqueueinfo
    SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_rt_tgsigqueueinfo SYS_sigaltstack SYS_tgkill SYS_tkill
    // Users and rights.
    SYS_capget SYS_capset SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getresgid SYS_getresuid SYS_getuid
    SYS_landlock_add_rule SYS_landlock_create_ruleset SYS_landlock_restrict_self SYS_seccomp SYS_setfsgid SYS_setfsuid SYS_setgid
    SYS_setgroups SYS_setregid SYS_setresgid SYS_setresuid SYS_setreuid SYS_setuid
    // Time.
    SYS_adjtimex SYS_clock_adjtime SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_getitimer SYS_gettimeofday
    SYS_nanosleep SYS_setitimer SYS_timer_create SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime
    SYS_timerfd_create SYS_timerfd_gettime SYS_timerfd_settime SYS_times
    // Sockets.
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt SYS_listen SYS_recvfrom SYS_recvmmsg
    SYS_recvmsg SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_setsockopt SYS_shutdown SYS_socket SYS_socketpair
    // Queues and shared memory.
    SYS_mq_getsetattr SYS_mq_notify SYS_mq_open SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink SYS_msgctl SYS_msgget SYS_msgrcv
    SYS_msgsnd SYS_semctl SYS_semget SYS_semop SYS_semtimedop SYS_shmat SYS_shmctl SYS_shmdt SYS_shmget
    // The machine.
    SYS_getrandom SYS_sysinfo SYS_uname
];

/// Older forms of these calls.
#[cfg(target_arch = "x86_64")]
const OFFERED_OLD: &[i64] = calls![
    SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_fork
    SYS_futimesat SYS_getdents SYS_getpgrp SYS_inotify_init SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_mknod SYS_modify_ldt SYS_open
    SYS_pause SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_rmdir SYS_select SYS_signalfd SYS_stat SYS_symlink SYS_time SYS_unlink
    SYS_utime SYS_utimes SYS_vfork
];
#[cfg(not(target_arch = "x86_64"))]
const OFFERED_OLD: &[i64] = &[];

/// Later calls, whose numbers are the same on all architectures: `cachestat`, `fchmodat2`, `map_shadow_stack`, `futex_wake`,
/// `futex_wait` and `futex_requeue` (Linux 6.5 to 6.7).
const OFFERED_NEW: std::ops::RangeInclusive<i64> = 451..=456;

/// Calls that change the node, leave the container, or reach other processes, with those that had many faults in the past.
const REFUSED: &[i64] = calls![
    // Mounts and namespaces.
    SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_mount SYS_mount_setattr SYS_move_mount SYS_open_tree SYS_pivot_root SYS_setns
    SYS_umount2 SYS_unshare
    // Files by their numbers, which lead out of a mount.
    SYS_name_to_handle_at SYS_open_by_handle_at
    // Other processes. Without a PID namespace of its own, a container sees those of the node.
    SYS_kcmp SYS_pidfd_getfd SYS_process_madvise SYS_process_vm_readv SYS_process_vm_writev SYS_ptrace
    // The keys of the kernel: a container inherits a keyring of the agent.
    SYS_add_key SYS_keyctl SYS_request_key
    // Programs in the kernel, and the measurement of it.
    SYS_bpf SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_perf_event_open SYS_userfaultfd
    // The memory of the node.
    SYS_get_mempolicy SYS_mbind SYS_migrate_pages SYS_move_pages SYS_set_mempolicy SYS_set_mempolicy_home_node
    // The settings of the node.
    SYS_acct SYS_clock_settime SYS_delete_module SYS_fanotify_init SYS_finit_module SYS_init_module SYS_kexec_load
    SYS_lookup_dcookie SYS_nfsservctl SYS_quotactl SYS_quotactl_fd SYS_reboot SYS_setdomainname SYS_sethostname SYS_settimeofday
    SYS_swapoff SYS_swapon SYS_syslog SYS_vhangup
];

/// The same among the calls that only this architecture has: ports of devices, and what the kernel no longer uses.
#[cfg(target_arch = "x86_64")]
const REFUSED_OLD: &[i64] = calls![SYS__sysctl SYS_ioperm SYS_iopl SYS_sysfs SYS_uselib SYS_ustat];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OLD: &[i64] = &[];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use rustix::net::{AddressFamily, SocketType, socket};
    use rustix::thread::UnshareFlags;

    use super::super::super::namespaces::unshare;
    use super::*;

    #[test]
    fn no_call_is_both_offered_and_refused_and_clone3_is_neither() {
        let offered: BTreeSet<i64> = OFFERED.iter().chain(OFFERED_OLD).copied().chain(OFFERED_NEW).collect();
        let refused: BTreeSet<i64> = REFUSED.iter().chain(REFUSED_OLD).copied().collect();
        assert!(offered.is_disjoint(&refused));
        assert_eq!(offered.len(), OFFERED.len() + OFFERED_OLD.len() + OFFERED_NEW.count(), "a call is listed twice");
        assert!(!offered.contains(&libc::SYS_clone3) && !refused.contains(&libc::SYS_clone3));
    }

    #[test]
    fn thread_with_the_filters_runs_programs_and_cannot_leave_its_namespaces() {
        // Without any flag, this call changes nothing and needs no right. Only a filter of a container that runs the tests refuses it.
        if let Err(error) = unshare(UnshareFlags::empty()) {
            eprintln!("the tests may not call unshare ({error}), so their own filter refuses the call");
        }
        let confined = || {
            install().unwrap();
            assert_eq!(unshare(UnshareFlags::empty()).unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
            for family in [38, 40].map(AddressFamily::from_raw) {
                assert_eq!(socket(family, SocketType::STREAM, None).unwrap_err(), Errno::PERM, "{family:?}");
            }
            assert!(socket(AddressFamily::INET, SocketType::STREAM, None).is_ok());
            let script =
                "sh -c 'exit 3' | cat; x=$(cat /proc/self/status); echo \"$x\" | grep -E '^(Seccomp|NoNewPrivs):'";
            let output = Command::new("/bin/sh").args(["-c", script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "NoNewPrivs:\t1\nSeccomp:\t2\n", "{}", output.status);
        };
        // The filters belong to the thread.
        std::thread::spawn(confined).join().unwrap();
    }
}

//! The processes of containers, read from the machine.

use std::path::Path;
use std::{fs, io};

use podwright_model::ids::ContainerId;
use podwright_ports::{ContainerProcess, RuntimeError};
use rustix::io::Errno;

use super::inner::CriRuntimeInner;
use super::tasks::blocking;
use super::v1;

impl CriRuntimeInner {
    /// The first process of a container. `None` if the runtime reports no process, as it does for a container that was never started,
    /// and if the process cannot be read.
    pub(super) async fn process_of(&self, id: &ContainerId) -> Result<Option<ContainerProcess>, RuntimeError> {
        let request = v1::ContainerStatusRequest { container_id: id.as_str().to_owned(), verbose: true };
        let answer = self.client.container_status(request).await?;
        let Some(pid) = answer.info.get("info").and_then(|info| pid_of_container(info)) else { return Ok(None) };
        let has_ended = blocking(move || Ok(has_ended(Path::new("/proc"), pid))).await?;
        Ok(has_ended.map(|has_ended| ContainerProcess { pid, has_ended }))
    }
}

/// The process in the verbose status of a container. containerd and CRI-O use the same JSON field.
fn pid_of_container(info: &str) -> Option<u32> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    info.get("pid")?.as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

/// Whether a process has ended; `None` if it cannot be read. If the kernel has given the number to another process, the answer is no.
fn has_ended(proc: &Path, pid: u32) -> Option<bool> {
    let process = proc.join(pid.to_string());
    let stat = match fs::read_to_string(process.join("stat")) {
        Ok(stat) => stat,
        Err(error) => return is_gone(&error).then_some(true),
    };
    // The name of the command is in parentheses, and may contain parentheses and spaces.
    match stat.rsplit_once(')')?.1.trim_start().chars().next()? {
        'X' => Some(true),
        // The first thread has ended (proc_pid_stat(5)). The process has ended if it was the last one.
        'Z' => match fs::read_dir(process.join("task")) {
            Ok(threads) => Some(threads.count() <= 1),
            Err(error) => is_gone(&error).then_some(true),
        },
        _ => Some(false),
    }
}

/// Whether the error says that there is no such process. A process that ends while it is read gives ESRCH.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    // KF24
    #[test]
    fn process_has_ended_only_if_no_thread_of_it_is_left() {
        for (stat, threads, expected) in [
            ("7 (a) b) S 1 7", &["7"][..], Some(false)),
            ("7 (a) b) Z 1 7", &["7"], Some(true)),
            ("7 (a) b) Z 1 7", &["7", "8"], Some(false)),
            ("7 (a) b) X 1 7", &["7"], Some(true)),
            ("", &["7"], None),
        ] {
            let proc = tempfile::tempdir().unwrap();
            let process = proc.path().join("7");
            threads.iter().for_each(|thread| fs::create_dir_all(process.join("task").join(thread)).unwrap());
            fs::write(process.join("stat"), stat).unwrap();
            assert_eq!(has_ended(proc.path(), 7), expected, "{stat:?} {threads:?}");
            assert_eq!(has_ended(proc.path(), 9), Some(true), "there is no such process");
        }
    }

    // KF24
    #[test]
    fn process_that_cannot_be_read_is_unknown() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("7/stat")).unwrap();
        assert_eq!(has_ended(proc.path(), 7), None);
    }
}

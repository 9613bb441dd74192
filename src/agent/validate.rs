//! `podwright validate`: reads manifests as `run` does, and runs nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::adapters::manifest::{self, Manifest};
use crate::adapters::sources;

use super::error_text::reason;
use super::machine;

/// The output of `validate`: one line for each good file, for each fault and for each warning. A warning counts as a fault:
/// a misspelled field is ignored, so the pod does not run as its author intends.
#[derive(Debug, Default)]
pub(crate) struct ValidationReport {
    pub(crate) lines: Vec<String>,
    pub(crate) faults: usize,
}

/// Checks files, and the files in directories.
pub(crate) fn validate(paths: &[PathBuf]) -> ValidationReport {
    let mut report = ValidationReport::default();
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for path in paths {
        match files(path) {
            Ok(files) if files.is_empty() => report.lines.push(format!("{}: no manifests", path.display())),
            Ok(files) => files.iter().for_each(|file| report.read(file, &mut seen)),
            Err(error) => report.fault(path, &format!("cannot be read ({}): check the path", reason(&error))),
        }
    }
    report
}

impl ValidationReport {
    fn read(&mut self, file: &Path, seen: &mut BTreeMap<String, String>) {
        let bytes = match sources::contents(file) {
            Ok(bytes) => bytes,
            Err(error) => {
                return self.fault(file, &format!("cannot be read ({}): correct or remove it", reason(&error)));
            }
        };
        let Manifest { pods, faults, warnings } = manifest::read(&bytes);
        let before = self.faults;
        faults.iter().for_each(|fault| self.fault(file, &fault.to_string()));
        warnings.iter().for_each(|warning| self.fault(file, &format!("warning: {}", warning.fault)));
        let mut names = Vec::new();
        for pod in pods {
            let namespace = pod.metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
            let pod_name = pod.metadata.name.unwrap_or_default();
            let name = format!("{}/{pod_name}", namespace.unwrap_or("default"));
            if let Some(other) = seen.insert(name.clone(), file.display().to_string()) {
                self.fault(
                    file,
                    &format!("pod {name} is already defined by {other}: change its name or remove one of the two"),
                );
            }
            if let Some(over) = too_long_by(&pod_name) {
                let remedy = format!("shorten it by {over} bytes");
                self.fault(
                    file,
                    &format!("pod name {pod_name:?} is too long with this node's name behind it: {remedy}"),
                );
            }
            names.push(name);
        }
        if self.faults == before {
            let pods = if names.len() == 1 { "pod" } else { "pods" };
            self.lines.push(format!("{}: ok, {} {pods}: {}", file.display(), names.len(), names.join(", ")));
        }
    }

    fn fault(&mut self, path: &Path, message: &str) {
        self.faults += 1;
        self.lines.push(format!("{}: {message}", path.display()));
    }
}

/// The number of bytes by which the name of a static pod is too long. `run` appends the name of the node.
fn too_long_by(pod: &str) -> Option<usize> {
    let name = format!("{pod}-{}", machine::node_name());
    name.len().checked_sub(sources::MAX_NAME).filter(|over| *over > 0)
}

/// The files that `run` would read. A missing path is an error here, although `run` waits for it to appear.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    fs::symlink_metadata(path)?;
    sources::list(path)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n";

    #[test]
    fn validate_prints_a_line_for_each_good_file_and_each_fault() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("a.yaml", GOOD);
        write("b.yaml", &GOOD.replace("image: i", "imagee: i"));
        write("c.yaml", GOOD);
        write(".hidden", "no manifest");
        write("d.yaml", &GOOD.replace("image: i", "image: i, tyy: true").replace("name: a", "name: d"));
        write("e.yaml", &GOOD.replace("name: a", &format!("name: {}", "e".repeat(253))));
        let report = validate(&[dir.path().to_owned(), dir.path().join("missing")]);
        let says = |index: usize, what: &str| assert!(report.lines[index].contains(what), "{:#?}", report.lines);
        says(0, "a.yaml: ok, 1 pod: default/a");
        says(1, "imagee");
        says(report.lines.len() - 4, "c.yaml: pod default/a is already defined by");
        says(report.lines.len() - 3, "d.yaml: warning: line 4");
        says(report.lines.len() - 2, "with this node's name behind it: shorten it by");
        says(report.lines.len() - 1, "missing: cannot be read");
        assert!(report.faults >= 4, "{:#?}", report.lines);
    }

    #[test]
    fn validate_refuses_a_named_pipe_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (done, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(validate(&[pipe])));
        let report = answer.recv_timeout(std::time::Duration::from_secs(180)).expect("it does not wait for a writer");
        assert!(report.lines[0].contains("pipe: cannot be read (not a regular file)"), "{:#?}", report.lines);
    }
}

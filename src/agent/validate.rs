//! `podwright validate`: reads manifests as `run` does, and runs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use podwright_model::text::reason;
use podwright_sources::manifest::{self, MAX_BYTES, Manifest};

use super::machine;
use super::runtime::Runtime;

/// The path that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// The output of `validate`: one line for each good file, for each fault and for each warning. A warning counts as a fault:
/// a misspelled field is ignored, so the pod does not run as its author intends.
#[derive(Debug, Default)]
pub(crate) struct ValidationReport {
    pub(crate) lines: Vec<String>,
    pub(crate) faults: usize,
}

/// Checks files, and the files in directories. With a runtime, what it refuses is a fault too.
pub(crate) fn validate(paths: &[PathBuf], runtime: Option<&Runtime>) -> ValidationReport {
    let mut validation = Validation { runtime, ..Validation::default() };
    for path in paths {
        match files(path) {
            Ok(files) if files.is_empty() => validation.report.fault(
                path,
                "no manifests: name a directory with manifests; hidden files, backups of editors and directories in it are skipped",
            ),
            Ok(files) => files.iter().for_each(|file| validation.read(file)),
            Err(error) => validation.report.fault(path, &format!("cannot be read ({}): check the path", reason(&error))),
        }
    }
    validation.report
}

#[derive(Default)]
struct Validation<'a> {
    runtime: Option<&'a Runtime>,
    report: ValidationReport,
    /// The files that were read.
    files: BTreeSet<PathBuf>,
    /// Each pod with its file.
    pods: BTreeMap<String, String>,
}

impl Validation<'_> {
    fn read(&mut self, file: &Path) {
        // Two paths may lead to one file.
        if !self.files.insert(fs::canonicalize(file).unwrap_or_else(|_| file.to_owned())) {
            return;
        }
        let bytes = match contents(file) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!("cannot be read ({}): correct or remove it", reason(&error));
                return self.report.fault(file, &message);
            }
        };
        let Manifest { pods, faults, warnings } = manifest::read(&bytes);
        let before = self.report.faults;
        faults.iter().for_each(|fault| self.report.fault(file, &fault.to_string()));
        warnings.iter().for_each(|warning| self.report.fault(file, &format!("warning: {}", warning.fault)));
        let names: Vec<String> = pods.into_iter().map(|pod| self.check(file, pod)).collect();
        if self.report.faults == before {
            let pods = if names.len() == 1 { "pod" } else { "pods" };
            self.report.lines.push(format!("{}: ok, {} {pods}: {}", file.display(), names.len(), names.join(", ")));
        }
    }

    /// Checks a valid pod of a manifest against the other pods, the node name and the runtime. Returns its name.
    fn check(&mut self, file: &Path, pod: Pod) -> String {
        let namespace = pod.metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        let pod_name = pod.metadata.name.unwrap_or_default();
        let name = format!("{}/{pod_name}", namespace.unwrap_or("default"));
        if let Some(other) = self.pods.insert(name.clone(), file.display().to_string()) {
            let message = format!("pod {name} is already defined by {other}: change its name or remove one of the two");
            self.report.fault(file, &message);
        }
        if let Some(over) = too_long_by(&pod_name) {
            let remedy = format!("shorten it by {over} bytes");
            let message = format!("pod name {pod_name:?} is too long with this node's name behind it: {remedy}");
            self.report.fault(file, &message);
        }
        for refusal in pod.spec.iter().flat_map(|spec| refused_by(self.runtime, spec)) {
            self.report.fault(file, &format!("pod {name}: {refusal}"));
        }
        name
    }
}

impl ValidationReport {
    fn fault(&mut self, path: &Path, message: &str) {
        self.faults += 1;
        self.lines.push(format!("{}: {message}", path.display()));
    }
}

/// What a runtime refuses in a pod. A container runtime is asked only when the pod runs, and simulated pods have no settings.
fn refused_by(runtime: Option<&Runtime>, spec: &PodSpec) -> Vec<String> {
    if runtime == Some(&Runtime::Process) {
        return crate::adapters::process::unsupported(spec);
    }
    Vec::new()
}

/// The number of bytes by which the name of a static pod is too long. `run` appends the name of the node.
fn too_long_by(pod: &str) -> Option<usize> {
    let name = format!("{pod}-{}", machine::node_name());
    name.len().checked_sub(podwright_sources::MAX_NAME).filter(|over| *over > 0)
}

/// The bytes of a file, or of standard input. At most one byte more than a manifest may have.
fn contents(file: &Path) -> io::Result<Vec<u8>> {
    if file != Path::new(STANDARD_INPUT) {
        return podwright_sources::contents(file);
    }
    let mut bytes = Vec::new();
    io::stdin().take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files that `run` would read. A missing path is an error here, although `run` waits for it to appear.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path == Path::new(STANDARD_INPUT) {
        return Ok(vec![path.to_owned()]);
    }
    fs::symlink_metadata(path)?;
    podwright_sources::list(path)
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
        // A file is checked once, however often it is named.
        let report = validate(&[dir.path().to_owned(), dir.path().join("a.yaml"), dir.path().join("missing")], None);
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
        std::thread::spawn(move || done.send(validate(&[pipe], None)));
        let report = answer.recv_timeout(std::time::Duration::from_secs(180)).expect("it does not wait for a writer");
        assert!(report.lines[0].contains("pipe: cannot be read (not a regular file)"), "{:#?}", report.lines);
    }

    #[test]
    fn directory_without_manifests_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml~"), GOOD).unwrap();
        let report = validate(&[dir.path().to_owned()], None);
        assert!(
            report.faults == 1 && report.lines[0].contains("no manifests: name a directory"),
            "{:#?}",
            report.lines
        );
    }

    #[test]
    fn settings_that_the_runtime_refuses_are_faults_for_this_runtime() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let check = |spec: &str, runtime: Option<&str>| {
            fs::write(
                &file,
                GOOD.replace("spec: {", &format!("spec: {{{spec}, ")).replace("image: i", "image: i, command: [x]"),
            )
            .unwrap();
            validate(std::slice::from_ref(&file), runtime.map(|runtime| runtime.parse().unwrap()).as_ref()).lines
        };
        let says = |lines: &[String], what: &str| assert!(lines[0].contains(what), "{what}: {lines:#?}");
        let seccomp = "securityContext: {seccompProfile: {type: Localhost, localhostProfile: p.json}}";
        says(&check(seccomp, None), "ok, 1 pod");
        says(&check(seccomp, Some("simulated")), "ok, 1 pod");
        let refused =
            "a.yaml: pod default/a: container c: the process runtime cannot apply `seccompProfile.type` Localhost";
        says(&check(seccomp, Some("process")), refused);
        says(&check("shareProcessNamespace: true", Some("process")), "`shareProcessNamespace`");
        says(&check("hostNetwork: true", Some("process")), "ok, 1 pod");
        fs::write(&file, GOOD).unwrap();
        says(&validate(std::slice::from_ref(&file), Some(&Runtime::Process)).lines, "container c has no command");
    }
}

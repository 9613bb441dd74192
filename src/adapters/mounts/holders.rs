//! The processes that have something open below a path.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How many are named: enough to know where to look.
const NAMED: usize = 3;

/// Processes that work in, run from, or have open what is below a path, at most three, for people. A process in another mount
/// namespace has other paths, so what is on the same file system counts too, if that is one that begins at the path.
pub(in crate::adapters) fn holders(path: &Path) -> Vec<String> {
    let Ok(path) = fs::canonicalize(path) else { return vec![] };
    let device = |path: &Path| fs::metadata(path).ok().map(|meta| meta.dev());
    let own = device(&path).filter(|own| path.parent().and_then(device) != Some(*own));
    let is_below = |link: &Path| {
        fs::read_link(link).is_ok_and(|to| to.starts_with(&path)) || (own.is_some() && device(link) == own)
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let processes = processes
        .filter(|dir| dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u32>().is_ok()));
    let holds = |dir: &Path| {
        let how = [("cwd", "its working directory"), ("root", "its root"), ("exe", "its program")];
        let how = how.into_iter().find(|(link, _)| is_below(&dir.join(link))).map(|(_, how)| how);
        let open = || {
            let mut files = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
            files.any(|file| is_below(&file.path())).then_some("an open file")
        };
        how.or_else(open)
    };
    let named = processes.filter_map(|dir| {
        let how = holds(&dir)?;
        let name = fs::read_to_string(dir.join("comm")).unwrap_or_default();
        Some(format!("process {} ({}, {how})", dir.file_name()?.to_str()?, name.trim_end()))
    });
    named.take(NAMED).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn who_has_a_file_open_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held");
        fs::create_dir(&path).unwrap();
        assert_eq!(holders(&path), [""; 0]);
        let _open = File::create(path.join("file")).unwrap();
        let found = holders(&path);
        let own = format!("process {} (", std::process::id());
        assert!(found.len() == 1 && found[0].starts_with(&own) && found[0].ends_with("an open file)"), "{found:?}");
    }
}

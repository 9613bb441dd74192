//! The sources of manifests.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use reqwest::Url;
use reqwest::header::HeaderMap;

use super::RunError;
use crate::adapters::adoption::Adoption;
use crate::agent::cli::RunArgs;
use crate::agent::page::ManifestLocation;
use crate::agent::root::DefaultDirectories;
use podwright_http_server::read_private;
use podwright_parts::Parts;
use podwright_ports::{SourceInbox, SourceKind};
use podwright_sources::{Adopt, FileSource, Origin, SourceContext, UrlSource, check_root, headers, redacted};

/// The paths and URLs that manifests are read from.
#[derive(Default)]
pub(super) struct ManifestSources {
    paths: Vec<PathBuf>,
    urls: Vec<Url>,
    /// The headers of requests to the URLs.
    headers: HeaderMap,
}

impl ManifestSources {
    pub(super) fn of(args: &RunArgs, defaults: &DefaultDirectories) -> Result<Self, RunError> {
        let mut manifests = ManifestSources::default();
        for origin in &args.manifests {
            match origin {
                Origin::Path(path) => manifests.paths.push(path.clone()),
                Origin::Url(url) => manifests.urls.push(url.clone()),
            }
        }
        if let Some(file) = &args.manifest_url_header_file {
            let text = read_private(file).map_err(RunError::ManifestHeaderFile)?;
            manifests.headers =
                headers(&text).map_err(|source| RunError::ManifestHeaders { path: file.clone(), source })?;
        }
        if args.manifests.is_empty() && !args.no_manifests {
            manifests.paths.push(defaults.manifests()?);
        }
        for path in &manifests.paths {
            check_root(path).map_err(RunError::UntrustedManifests)?;
        }
        match manifests.paths.iter().find(|path| !path.exists()) {
            Some(path) if args.until_finished => Err(RunError::NoManifest(path.clone())),
            _ => Ok(manifests),
        }
    }

    pub(super) fn kinds(&self) -> Vec<SourceKind> {
        let mut kinds = Vec::new();
        if !self.paths.is_empty() {
            kinds.push(SourceKind::File);
        }
        if !self.urls.is_empty() {
            kinds.push(SourceKind::Http);
        }
        kinds
    }

    /// The locations as the page shows them. A URL is shown without its user name and password.
    pub(super) fn locations(&self) -> Vec<ManifestLocation> {
        let paths = self
            .paths
            .iter()
            .map(|path| ManifestLocation { source: SourceKind::File, location: path.display().to_string() });
        let urls = self
            .urls
            .iter()
            .map(|url| ManifestLocation { source: SourceKind::Http, location: redacted(url).to_string() });
        paths.chain(urls).collect()
    }

    /// Starts the sources as parts. They send their pods to `to`.
    pub(super) fn start(self, context: &SourceContext, to: &Arc<dyn SourceInbox>, parts: &Parts) {
        for path in self.paths.iter().filter(|path| !path.exists()) {
            tracing::warn!(path = %path.display(), "manifest path does not exist yet; pods start once it holds manifests");
        }
        if !self.paths.is_empty() {
            let source = FileSource::new(self.paths, context.clone());
            let (to, stop) = (to.clone(), parts.stop().clone());
            parts.spawn_local("manifest_files", async move || source.clone().run(to.clone(), stop.clone()).await);
        }
        if !self.urls.is_empty() {
            let source = UrlSource::new(self.urls, context.clone()).headers(&self.headers);
            let (to, stop) = (to.clone(), parts.stop().clone());
            parts.spawn_local("manifest_urls", async move || source.clone().run(to.clone(), stop.clone()).await);
        }
    }
}

/// What the sources do with each update, so that pods of a kubelet are adopted.
pub(super) fn adopt(adoption: Adoption) -> Arc<Adopt> {
    Arc::new(move |update| {
        let adoption = adoption.clone();
        async move { adoption.apply(update).await }.boxed()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::agent::cli::{Cli, Command};

    #[test]
    fn manifests_that_other_users_can_change_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let (dir, file) = (home.path().join("pods"), home.path().join("pod.yaml"));
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "").unwrap();
        for path in [dir, file] {
            let started = |mode| {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                manifests(&["--manifests", path.to_str().unwrap()], home.path())
            };
            assert!(matches!(started(0o707), Err(RunError::UntrustedManifests(refused)) if refused.path == path));
            started(0o755).unwrap();
        }
    }

    #[test]
    fn headers_come_from_a_file_that_others_cannot_read() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("headers");
        let read = |text: &str, mode: u32| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            manifests(&["--manifests=https://host", "--manifest-url-header-file", file.to_str().unwrap()], home.path())
        };
        assert_eq!(read("X-A: 1", 0o600).unwrap().headers["x-a"], "1");
        assert!(matches!(read("X-A: 1", 0o644), Err(RunError::ManifestHeaderFile(_))));
        let error = read("hunter2", 0o600).err().unwrap().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
    }

    fn manifests(args: &[&str], home: &Path) -> Result<ManifestSources, RunError> {
        let Command::Run(args) = Cli::parse_from(["podwright", "run"].iter().chain(args)).command else { panic!() };
        ManifestSources::of(&args, &DefaultDirectories::of_user(home))
    }

    #[test]
    fn until_finished_refuses_a_manifest_path_that_does_not_exist() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(manifests(&[], home.path()).unwrap().paths, [home.path().join(".config/podwright/manifests")]);
        let none = manifests(&["--no-manifests"], home.path()).unwrap();
        assert!(none.kinds().is_empty() && none.locations().is_empty());
        for args in [&["--until-finished"][..], &["--until-finished", "--manifests", "/nowhere/at-all"]] {
            assert!(matches!(manifests(args, home.path()), Err(RunError::NoManifest(_))), "{args:?}");
        }
    }
}

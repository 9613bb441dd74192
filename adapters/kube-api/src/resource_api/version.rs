//! Finds the version of `resource.k8s.io` that an API server serves.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;

/// A version of `resource.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `v1`: Kubernetes 1.34 and later.
    V1,
    /// `v1beta2`.
    V1Beta2,
    /// `v1beta1`: Kubernetes 1.32 and later.
    V1Beta1,
}

/// All versions, newest first.
const VERSIONS: [Version; 3] = [Version::V1, Version::V1Beta2, Version::V1Beta1];

impl Version {
    /// The number of versions.
    pub const COUNT: usize = VERSIONS.len();

    /// The version in paths.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V1 => "v1",
            Version::V1Beta2 => "v1beta2",
            Version::V1Beta1 => "v1beta1",
        }
    }

    /// The field `apiVersion` of objects.
    pub fn api_version(self) -> String {
        format!("resource.k8s.io/{}", self.as_str())
    }
}

/// The version that an API server serves, as far as it is known. The first guess is the newest one.
#[derive(Debug, Default)]
pub struct ServedVersion {
    /// Counts the versions that were not served. After the last version, the search continues with the first one, because an update
    /// of the server may remove an old version.
    missed: AtomicUsize,
}

impl ServedVersion {
    /// The version to use next.
    pub fn current(&self) -> Version {
        VERSIONS[self.missed.load(Ordering::Relaxed) % VERSIONS.len()]
    }

    /// Records that a version is not served. If another caller has already recorded it, nothing changes.
    pub fn is_missing(&self, version: Version) {
        let next =
            |missed: usize| (VERSIONS[missed % VERSIONS.len()] == version).then_some((missed + 1) % VERSIONS.len());
        let _other_version = self.missed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Makes a call with the current version, and with the next ones if the API server does not serve it.
    ///
    /// # Errors
    /// The last error of `call`.
    pub async fn call<'a, T>(&self, call: impl Fn(Version) -> BoxFuture<'a, kube::Result<T>>) -> kube::Result<T> {
        let mut tries = 1;
        loop {
            let version = self.current();
            match call(version).await {
                Err(error) if is_not_served(&error) && tries < Version::COUNT => {
                    tracing::debug!(
                        version = version.as_str(),
                        "the API server does not serve this version of resource.k8s.io"
                    );
                    self.is_missing(version);
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }
}

/// Whether the API server does not know the path of a call. A server that knows the path names the missing object in its answer.
pub fn is_not_served(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use kube::core::Status;
    use serde_json::json;

    use super::*;

    /// The answer of a server to a path that it does not know, and to a name that it does not know.
    fn not_served() -> kube::Error {
        kube::Error::Api(Status::failure("404 page not found", "Failed to parse error data").with_code(404).boxed())
    }

    fn no_object() -> kube::Error {
        let status = json!({"status": "Failure", "code": 404, "reason": "NotFound", "details": {"name": "cam"}});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    async fn tried(versions: &ServedVersion, answer: impl Fn(Version) -> kube::Result<()>) -> Vec<Version> {
        let tried = Mutex::new(Vec::new());
        let call = |version| -> BoxFuture<'static, kube::Result<()>> {
            tried.lock().unwrap().push(version);
            let answer = answer(version);
            Box::pin(async { answer })
        };
        let _answer = versions.call(call).await;
        tried.into_inner().unwrap()
    }

    #[tokio::test]
    async fn version_that_is_served_is_remembered_until_it_is_gone() {
        use Version::{V1, V1Beta1, V1Beta2};
        let versions = ServedVersion::default();
        let only = |served| move |version| if version == served { Ok(()) } else { Err(not_served()) };
        assert_eq!(tried(&versions, only(V1Beta1)).await, [V1, V1Beta2, V1Beta1]);
        assert_eq!(tried(&versions, only(V1Beta1)).await, [V1Beta1]);
        assert_eq!(tried(&versions, only(V1)).await, [V1Beta1, V1]);
    }

    #[tokio::test]
    async fn missing_object_and_a_server_without_the_group_end_the_search() {
        let versions = ServedVersion::default();
        assert_eq!(tried(&versions, |_| Err(no_object())).await, [Version::V1]);
        assert_eq!(tried(&versions, |_| Err(not_served())).await, VERSIONS);
    }
}

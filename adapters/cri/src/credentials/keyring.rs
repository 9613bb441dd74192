//! Finds the logins for an image (upstream `BasicDockerKeyring`, kubelet 1.36).

use std::collections::BTreeMap;

use podwright_model::image_scope::covers;

use super::Login;

/// The host of Docker Hub in logins, and in normal image names.
const HUB_OF_LOGINS: &str = "index.docker.io";
const HUB: &str = "docker.io";

/// Logins by [scope](podwright_model::image_scope).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keyring<L = Login>(BTreeMap<String, Vec<L>>);

impl<L> Default for Keyring<L> {
    fn default() -> Self {
        Keyring(BTreeMap::new())
    }
}

impl<L: Clone> Keyring<L> {
    /// Adds logins. A login comes after the earlier ones of the same scope. The scheme and the registry's API version are ignored,
    /// as in `https://index.docker.io/v1/`.
    pub(crate) fn add(&mut self, logins: Vec<(String, L)>) {
        for (scope, login) in logins {
            let scope = scope.strip_prefix("https://").or_else(|| scope.strip_prefix("http://")).unwrap_or(&scope);
            let (host, path) = scope.split_at(scope.find('/').unwrap_or(scope.len()));
            let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
            let key = if path == "/" { host.to_owned() } else { format!("{host}{path}") };
            self.0.entry(key).or_default().push(login);
        }
    }

    /// The logins to try for a repository, which is `HOST/PATH` in its normal form. A login with a longer scope comes first.
    pub(crate) fn of(&self, repository: &str) -> Vec<L> {
        // The map is sorted, so a scope comes after its prefixes; the reverse order has longer scopes first.
        let covering = self.0.iter().rev().filter(|(scope, _)| covers(scope, repository));
        let logins: Vec<L> = covering.flat_map(|(_, logins)| logins).cloned().collect();
        let is_of_hub = repository.split('/').next() == Some(HUB);
        if logins.is_empty() && is_of_hub {
            return self.0.get(HUB_OF_LOGINS).cloned().unwrap_or_default();
        }
        logins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> Login {
        Login::IdentityToken(name.to_owned())
    }

    /// A keyring in which each login is named for its scope.
    fn keyring(scopes: &[&str]) -> Keyring {
        let mut keyring = Keyring::default();
        keyring.add(scopes.iter().map(|scope| ((*scope).to_owned(), token(scope))).collect());
        keyring
    }

    fn found(scopes: &[&str], repository: &str) -> Vec<String> {
        let login = |login| match login {
            Login::IdentityToken(name) => name,
            Login::Password { .. } => unreachable!(),
        };
        keyring(scopes).of(repository).into_iter().map(login).collect()
    }

    #[test]
    fn a_login_applies_to_its_registry_without_scheme_and_version() {
        for scope in ["r.example/a", "https://r.example", "http://r.example/v1/", "https://r.example/v2/a", "*.example"]
        {
            assert_eq!(found(&[scope], "r.example/a/b"), [scope]);
        }
        assert_eq!(found(&["https://r.example/v2/b", "q.example"], "r.example/a"), [""; 0]);
    }

    #[test]
    fn logins_for_docker_hub_are_found_by_all_its_names() {
        for scope in ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "docker.io/library"] {
            assert_eq!(found(&[scope], "docker.io/library/busybox"), [scope]);
        }
        assert_eq!(
            found(&["docker.io", "index.docker.io"], "docker.io/a/b"),
            ["docker.io"],
            "the normal name comes first"
        );
        assert_eq!(found(&["index.docker.io"], "r.example/a"), [""; 0]);
        assert_eq!(found(&["index.docker.io"], "localhost/a"), [""; 0], "another registry gets no login of Docker Hub");
    }

    #[test]
    fn a_login_with_a_longer_scope_is_tried_first() {
        let scopes = ["r.example", "*.example", "r.example/a", "r.example/a/b", "r.example/c"];
        assert_eq!(found(&scopes, "r.example/a/b/c"), ["r.example/a/b", "r.example/a", "r.example", "*.example"]);
        let mut keyring = keyring(&["r.example"]);
        keyring.add(vec![("r.example".to_owned(), token("second"))]);
        assert_eq!(keyring.of("r.example/a"), [token("r.example"), token("second")]);
    }
}

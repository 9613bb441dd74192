//! The user of a request.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The group of every authenticated user (`k8s.io/apiserver/pkg/authentication/user`).
const AUTHENTICATED: &str = "system:authenticated";
/// The extra field with the digest of a client certificate (`k8s.io/apiserver/pkg/authentication/user`).
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// An authenticated user, with the fields of a `SubjectAccessReview`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct User {
    pub(super) name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user of a client certificate: the common name, with the organizations as groups (`CommonNameUserConversion`,
    /// `k8s.io/apiserver`). The last of several common names counts, as in the API server. `None` if the certificate has none.
    pub(super) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<User> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let name = parsed.subject().iter_common_name().last()?.as_str().ok().filter(|name| !name.is_empty())?;
        let groups = parsed.subject().iter_organization().filter_map(|group| group.as_str().ok());
        let sum = digest(&SHA256, certificate);
        let hex: String = sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let user = User {
            name: name.to_owned(),
            groups: groups.map(str::to_owned).collect(),
            extra: [(CREDENTIAL.to_owned(), vec![format!("X509SHA256={hex}")])].into(),
            ..User::default()
        };
        Some(user.authenticated())
    }

    /// The user that a token review names.
    pub(super) fn of_review(user: UserInfo) -> User {
        let user = User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        };
        user.authenticated()
    }

    /// The user in the group of authenticated users.
    fn authenticated(mut self) -> User {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// The access review of the user for a verb on a subresource of the node.
    pub(super) fn review(&self, node: &str, verb: &str, subresource: &str) -> SubjectAccessReviewSpec {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        SubjectAccessReviewSpec {
            user: text(&self.name),
            uid: text(&self.uid),
            groups: Some(self.groups.clone()),
            extra: (!self.extra.is_empty()).then(|| self.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: text(verb),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: text(subresource),
                name: text(node),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    #[test]
    fn common_name_and_organizations_of_a_certificate_are_user_and_groups() {
        let certificate = |names: &[(DnType, &str)]| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            names.iter().for_each(|(kind, name)| params.distinguished_name.push(kind.clone(), *name));
            let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            User::of_certificate(signed.der())
        };
        let names = [(DnType::OrganizationName, "system:masters"), (DnType::CommonName, "admin")];
        let user = certificate(&names).unwrap();
        assert_eq!(user.name, "admin");
        assert_eq!(user.groups, ["system:masters", AUTHENTICATED]);
        assert!(user.extra[CREDENTIAL][0].starts_with("X509SHA256="), "{user:?}");
        assert_eq!(certificate(&[(DnType::OrganizationName, "system:masters")]), None);
        assert_eq!(certificate(&[(DnType::CommonName, "")]), None);
        // The builder keeps one name of each kind, so the second one is the same attribute by its number.
        let again = DnType::CustomDnType(vec![2, 5, 4, 3]);
        assert_eq!(certificate(&[(DnType::CommonName, "first"), (again, "last")]).unwrap().name, "last");
        assert_eq!(User::of_certificate(&CertificateDer::from(vec![1, 2, 3])), None);
    }

    #[test]
    fn access_review_names_the_subresource_of_the_node() {
        let info =
            UserInfo { username: Some("eve".into()), groups: Some(vec![AUTHENTICATED.into()]), ..UserInfo::default() };
        let review = User::of_review(info).review("n1", "get", "metrics");
        assert_eq!((review.user.as_deref(), review.groups.unwrap().len()), (Some("eve"), 1));
        let of = review.resource_attributes.unwrap();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        assert_eq!([&of.verb, &of.resource, &of.subresource, &of.name].map(text), ["get", "nodes", "metrics", "n1"]);
    }
}

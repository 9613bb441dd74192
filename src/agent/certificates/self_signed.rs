//! A serving certificate that the agent signs itself.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

use super::pair::CertificatePair;

/// The lifetime of a certificate (upstream `GenerateSelfSignedCertKey`, 1.36).
const LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);
/// The start of the validity lies this long before the creation, because the clocks of clients may be slow (upstream
/// `GenerateSelfSignedCertKey`, 1.36).
const BACKDATE: SignedDuration = SignedDuration::from_hours(1);
/// A certificate is replaced this long before it expires.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Makes a key and a certificate for these names and addresses. Returns both as one text in PEM.
///
/// # Errors
/// An error if a name cannot be in a certificate.
pub(super) fn create(node: &str, names: &[String], now: Timestamp) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    // The time makes the subject unique. Clients may cache certificates by their subject.
    params.distinguished_name.push(DnType::CommonName, format!("{node}@{}", now.as_second()));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |time: Timestamp| Duration::from_secs(u64::try_from(time.as_second()).unwrap_or_default());
    params.not_before = epoch + since_epoch(now.saturating_sub(BACKDATE).unwrap_or(now));
    params.not_after = epoch + since_epoch(now.saturating_add(LIFETIME).unwrap_or(now));
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(certificate.pem() + &key.serialize_pem())
}

/// Whether a certificate can serve these names for some time. The names must be sorted.
pub(super) fn is_usable(pair: &CertificatePair, names: &[String], now: Timestamp) -> bool {
    let renewal = pair.validity.not_after.saturating_sub(RENEW_BEFORE).unwrap_or(pair.validity.not_after);
    pair.validity.not_before <= now && now < renewal && pair.names() == names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn certificate_names_the_node_and_its_addresses_for_a_year() {
        let now: Timestamp = "2026-11-23T00:00:00Z".parse().unwrap();
        let both = names(&["192.0.2.1", "2001:db8::1", "n1"]);
        let pem = create("n1", &both, now).unwrap();
        let pair = CertificatePair::parse(&pem, &pem).unwrap();
        assert_eq!(pair.names(), both);
        let later = |days: i64| now.saturating_add(SignedDuration::from_hours(24 * days)).unwrap();
        assert!(is_usable(&pair, &both, now));
        assert!(is_usable(&pair, &both, later(334)));
        assert!(!is_usable(&pair, &both, later(335)), "the certificate is renewed a month before its end");
        assert!(!is_usable(&pair, &both, later(-1)), "the certificate is not valid yet");
        assert!(!is_usable(&pair, &names(&["192.0.2.2", "n1"]), now), "the address of the node has changed");
    }
}

//! The files of a listener with TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The token in the files.
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Writes a certificate for this machine, its key and a token to a directory. Returns the flags that name these files.
pub(crate) fn write_tls_files(dir: &Path) -> [String; 3] {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let files = [
        ("--admin-tls-cert", "cert.pem", issued.cert.pem(), 0o644),
        ("--admin-tls-key", "key.pem", issued.signing_key.serialize_pem(), 0o600),
        ("--admin-token-file", "token", format!("{TOKEN}\n"), 0o600),
    ];
    files.map(|(flag, name, content, mode)| {
        let path = dir.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        format!("{flag}={}", path.display())
    })
}

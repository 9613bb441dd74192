//! Images that are built from the busybox of this machine, in the OCI layout.

use std::fs;
use std::path::Path;
use std::process::Command;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

/// The image of the example pods.
pub const BUSYBOX: &str = "docker.io/library/busybox:stable";
/// The image of the pause container of a sandbox.
pub const PAUSE: &str = "podwright.test/pause:1";

/// An image that no pod uses.
pub const SPARE: &str = "podwright.test/spare:1";

/// Writes an archive with images, for `ctr images import`.
pub fn write(busybox: &Path, images: &[&str], to: &Path) {
    let layer = layer(busybox);
    let mut blobs = vec![];
    let mut put = |bytes: Vec<u8>| {
        let hex: String = digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let described = json!({"digest": format!("sha256:{hex}"), "size": bytes.len()});
        blobs.push((hex, bytes));
        described
    };
    let layer = put(layer);
    let mut manifests = vec![];
    for name in images {
        let config = match *name {
            PAUSE => json!({"Entrypoint": ["/bin/sleep", "2147483647"]}),
            name => json!({"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"], "Labels": {"name": name}}),
        };
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let root = json!({"type": "layers", "diff_ids": [layer["digest"]]});
        let image = json!({"architecture": architecture, "os": "linux", "config": config, "rootfs": root});
        let typed = |mut described: Value, kind: &str| {
            described["mediaType"] = format!("application/vnd.oci.image.{kind}").into();
            described
        };
        let config = typed(put(image.to_string().into_bytes()), "config.v1+json");
        let layers = [typed(layer.clone(), "layer.v1.tar")];
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        let mut described = typed(put(manifest.to_string().into_bytes()), "manifest.v1+json");
        described["annotations"] = json!({"io.containerd.image.name": name});
        manifests.push(described);
    }
    let mut archive = Builder::new(fs::File::create(to).unwrap());
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    add(&mut archive, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    add(&mut archive, "index.json", 0o644, index.to_string().as_bytes());
    for (hex, bytes) in &blobs {
        add(&mut archive, &format!("blobs/sha256/{hex}"), 0o644, bytes);
    }
    archive.finish().unwrap();
}

/// Busybox with a link for each of its commands, and the files that programs expect.
fn layer(busybox: &Path) -> Vec<u8> {
    let mut layer = Builder::new(Vec::new());
    for (name, mode) in [("bin/", 0o755), ("etc/", 0o755), ("root/", 0o700), ("tmp/", 0o1777)] {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(mode);
        header.set_size(0);
        layer.append_data(&mut header, name, &[][..]).unwrap();
    }
    add(&mut layer, "bin/busybox", 0o755, &fs::read(busybox).unwrap());
    add(&mut layer, "etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n");
    add(&mut layer, "etc/group", 0o644, b"root:x:0:\n");
    let names = Command::new(busybox).arg("--list").output().unwrap().stdout;
    for name in String::from_utf8(names).unwrap().lines().filter(|name| *name != "busybox") {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        layer.append_link(&mut header, format!("bin/{name}"), "busybox").unwrap();
    }
    layer.into_inner().unwrap()
}

fn add<W: std::io::Write>(archive: &mut Builder<W>, name: &str, mode: u32, bytes: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes).unwrap();
}

//! Specifications of CDI devices, which vendors and drivers write.

use std::sync::Arc;

use podwright_host::cdi::{CdiError, Content, DeviceName, Edits, Format, Spec, Specs, parse, resolve};

/// The input is one byte and a specification. The byte selects JSON or YAML.
pub fn check(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let format = if how & 1 == 0 { Format::Json } else { Format::Yaml };
    let content = match parse(rest, format) {
        Ok(content) => content,
        Err(error) => return super::assert_plain(&error.to_string(), 800),
    };
    let names: Vec<String> = content.devices.iter().map(|device| format!("{}={}", content.kind, device.name)).collect();
    assert!(!names.is_empty() && names.iter().all(|name| name.parse::<DeviceName>().unwrap().to_string() == *name));

    let all = resolve(node([&content]), &names).unwrap();
    let twice: Vec<String> = names.iter().chain(&names).cloned().collect();
    assert_eq!(resolve(node([&content]), &twice).unwrap(), all, "each device counts once");
    assert_eq!(
        all.env.len(),
        all.env.iter().map(|text| text.split('=').next()).collect::<std::collections::BTreeSet<_>>().len()
    );
    assert_eq!(all.variables().count(), all.env.len(), "each variable has a name and a value");
    for device in &content.devices {
        let name = format!("{}={}", content.kind, device.name);
        let edits = resolve(node([&content]), std::slice::from_ref(&name)).unwrap();
        assert!(
            device
                .edits
                .mounts
                .iter()
                .all(|mount| edits.mounts.iter().any(|it| it.container_path == mount.container_path))
        );
        assert!(device.edits.device_nodes.iter().all(|node| edits.device_nodes.iter().any(|it| it.path == node.path)));
        apply(&edits);
        // The later directory wins, and one directory must have a device once.
        let mut later = content.clone();
        later.edits = Edits::default();
        later.devices.retain(|it| it.name == device.name);
        assert_eq!(resolve(node([&content, &later]), std::slice::from_ref(&name)).unwrap(), one(&device.edits));
        let mut same = node([&content, &later]);
        same.specs.iter_mut().for_each(|spec| Arc::make_mut(spec).directory = 0);
        assert!(matches!(resolve(same, &[name]), Err(CdiError::Conflict { .. })));
    }
}

/// Specifications of one directory each.
fn node<const N: usize>(contents: [&Content; N]) -> Specs {
    let spec = |(directory, content): (usize, &Content)| Spec {
        path: format!("/{directory}.json").into(),
        directory,
        kind: content.kind.clone(),
        devices: content.devices.clone(),
        edits: content.edits.clone(),
    };
    Specs { specs: contents.into_iter().enumerate().map(spec).map(Arc::new).collect(), ..Specs::default() }
}

/// The edits of a device without those of its specification.
fn one(edits: &Edits) -> Edits {
    let device = podwright_host::cdi::Device { name: "a".into(), edits: edits.clone() };
    let content = Content { kind: "v/c".into(), devices: vec![device], edits: Edits::default() };
    resolve(node([&content]), &["v/c=a".into()]).unwrap()
}

/// What cannot be applied has a short text.
fn apply(edits: &Edits) {
    let refused = edits.refuse_unsupported("a runtime").err();
    let mounts = edits.mounts.iter().filter_map(|mount| mount.bind_options().err());
    let nodes = edits.device_nodes.iter().map(|node| node.refuse("no"));
    for error in refused.into_iter().chain(mounts).chain(nodes) {
        super::assert_plain(&error.to_string(), 900);
    }
}

//! Answers of plugins and DRA drivers, as they arrive on their sockets.

use podwright_dra::testing::answers;

/// The longest text of an error that names what a plugin sent.
const MAX_ERROR: usize = 1024;
/// The longest text of a device.
const MAX_DEVICE_TEXT: usize = 1024;

/// Texts of plugins are bounded and printable, and the older version of an answer means the same as the newer one.
pub fn check(bytes: &[u8]) {
    match answers::plugin(bytes) {
        Some(Ok(plugin)) => {
            super::assert_plain(&plugin.kind, 253);
            super::assert_plain(&plugin.name, 253);
            super::assert_plain(plugin.endpoint.to_str().expect("a path of text"), 107);
            assert!(plugin.endpoint.is_absolute() && !plugin.name.is_empty() && plugin.versions.len() <= 64);
            plugin.versions.iter().for_each(|version| super::assert_plain(version, 253));
        }
        Some(Err(error)) => super::assert_plain(&error.to_string(), MAX_ERROR),
        None => {}
    }
    let prepared = answers::prepared(bytes);
    for (uid, answer) in prepared.iter().flatten() {
        super::assert_plain(uid.as_str(), 253);
        match answer {
            Ok(devices) => {
                for device in devices {
                    let texts = [&device.pool, &device.device].into_iter().chain(&device.share_id);
                    let lists = device.requests.iter().chain(&device.cdi_devices);
                    texts.chain(lists).for_each(|text| super::assert_plain(text, MAX_DEVICE_TEXT));
                }
            }
            Err(error) => super::assert_plain(error, MAX_ERROR),
        }
    }
    // The older version has no share ids, so it accepts every answer of the newer one, and differs only in them.
    if let Some(mut newer) = prepared {
        let older = answers::prepared_v1beta1(bytes).expect("an unknown field is no error");
        assert!(newer.keys().eq(older.keys()));
        newer.values_mut().flatten().flatten().for_each(|device| device.share_id = None);
        for (uid, answer) in newer {
            // A share id that is not valid makes only the newer answer an error.
            assert!(answer.is_err() || answer == older[&uid]);
        }
    }
    for answer in answers::unprepared(bytes).into_iter().flatten() {
        super::assert_plain(answer.0.as_str(), 253);
        if let Err(error) = answer.1 {
            super::assert_plain(&error, MAX_ERROR);
        }
    }
}

//! The encodings of a manifest: UTF-8, and UTF-16 with a byte order mark. Pure.

use std::borrow::Cow;

use super::tree::Position;

/// Decodes the bytes of a manifest.
///
/// # Errors
/// The position of the fault, and the fault with its remedy.
pub(super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, (Position, String)> {
    match bytes {
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => {
            Err((Position::after(""), "is UTF-32: save it as UTF-8".into()))
        }
        [0xFF, 0xFE, units @ ..] => utf_16(units, u16::from_le_bytes),
        [0xFE, 0xFF, units @ ..] => utf_16(units, u16::from_be_bytes),
        [0, 1..=0xFF, ..] | [1..=0xFF, 0, ..] => {
            Err((Position::after(""), "is UTF-16 without a byte order mark: save it as UTF-8".into()))
        }
        _ => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| {
            let at = Position::after(&String::from_utf8_lossy(&bytes[..error.valid_up_to()]));
            (at, "not valid UTF-8: save it in that encoding".into())
        }),
    }
}

fn utf_16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Cow<'_, str>, (Position, String)> {
    let (units, odd) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(bytes.len());
    let mut is_whole = odd.is_empty();
    for decoded in char::decode_utf16(units.iter().map(|bytes| unit(*bytes))) {
        let Ok(letter) = decoded else {
            is_whole = false;
            break;
        };
        text.push(letter);
    }
    if !is_whole {
        return Err((Position::after(&text), "not valid UTF-16: save it as UTF-8".into()));
    }
    Ok(Cow::Owned(text))
}

//! The names of slices. They start with the index of the slice in its pool, because the scheduler prefers slices by name.

/// The least number of digits.
const LEAST_WIDTH: usize = 5;

/// How many digits the names of a pool with this many slices have.
pub(super) fn width(slices: usize) -> usize {
    format!("{:x}", slices.saturating_sub(1)).len().max(LEAST_WIDTH)
}

/// The beginning of a name, to which the API server adds random characters.
pub(super) fn generate_name(index: usize, slices: usize, driver: &str, owner: Option<&str>) -> String {
    let owner = owner.map(|name| format!("{name}-")).unwrap_or_default();
    format!("{index:0width$x}-{driver}-{owner}", width = width(slices))
}

/// The index in a name. `None` if it does not have exactly `width` digits.
pub(super) fn index(name: &str, width: usize) -> Option<usize> {
    let (digits, _) = name.split_once('-')?;
    let is_index = digits.len() == width && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_index.then(|| usize::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRA-S13
    #[test]
    fn indexes_are_hexadecimal_with_leading_zeros() {
        let name = |index, slices| generate_name(index, slices, "d", Some("n"));
        assert_eq!(name(0, 1), "00000-d-n-");
        assert_eq!(name(31, 70_001), "0001f-d-n-");
        assert_eq!(name(70_000, 70_001), "11170-d-n-");
        assert_eq!(name(1_048_577, 1_048_578), "100001-d-n-");
        assert_eq!(generate_name(0, 1, "d", None), "00000-d-");
        assert_eq!((width(16_usize.pow(5)), width(16_usize.pow(5) + 1)), (5, 6));
        assert_eq!(width(0), 5);
    }

    #[test]
    fn name_without_a_valid_index_has_none() {
        assert_eq!(index("0001f-d-n-x7b2c", 5), Some(31));
        assert_eq!(index("100001-d", 6), Some(1_048_577));
        for (name, width) in
            [("0001f-d", 6), ("00001F-d", 6), ("0001F-d", 5), ("+001f-d", 5), ("0001f", 5), ("d-0001f", 5), ("", 5)]
        {
            assert_eq!(index(name, width), None, "{name}");
        }
    }
}

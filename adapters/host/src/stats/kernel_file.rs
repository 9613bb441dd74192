//! Numbers in files of the kernel with one key for each line, such as `memory.stat` of a cgroup and `/proc/meminfo`.

/// The number after a key and white space at the start of a line.
pub fn value(text: &str, key: &str) -> Option<u64> {
    let mut after_key = text.lines().filter_map(|line| line.strip_prefix(key));
    after_key.find(|rest| rest.starts_with([' ', '\t']))?.split_ascii_whitespace().next()?.parse().ok()
}

/// The number after a key in bytes. The file has it in KiB.
pub fn bytes(text: &str, key: &str) -> Option<u64> {
    value(text, key)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_follows_the_whole_key() {
        let text = "anon_thp 5\nanon 7\nMemTotal:        2048 kB\nVmRSS:\t    1200 kB\nfile\nslab much\n";
        let number = |key| value(text, key);
        assert_eq!(["anon", "MemTotal:", "VmRSS:"].map(number), [Some(7), Some(2048), Some(1200)]);
        assert_eq!(["file", "slab", "MemFree:"].map(number), [None; 3]);
        assert_eq!([bytes(text, "MemTotal:"), bytes(text, "file")], [Some(2 << 20), None]);
    }
}

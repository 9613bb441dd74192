//! A 128-bit hash that is the same on every machine and in every release: FNV-1a. A generated UID must not change when
//! the agent is rebuilt, which rules out the standard library's hasher.

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

pub(super) struct Fnv128(u128);

impl Fnv128 {
    pub(super) fn new() -> Self {
        Fnv128(OFFSET)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }

    pub(super) fn finish(&self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The published values of the algorithm.
    #[test]
    fn it_is_fnv_1a() {
        for (text, hash) in [
            ("", 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d),
            ("a", 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964),
            ("foobar", 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18),
        ] {
            let mut fnv = Fnv128::new();
            fnv.write(text.as_bytes());
            assert_eq!(fnv.finish(), hash, "{text:?}");
        }
    }
}

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| podwright_fuzz::claims_file::check(bytes));

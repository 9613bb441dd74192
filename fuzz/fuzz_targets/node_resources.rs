#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| podwright_fuzz::node_resources::check(bytes));

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| podwright_fuzz::log_writing::check(bytes));

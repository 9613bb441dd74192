#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| podwright_fuzz::cdi_spec::check(bytes));

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fermata::fuzz::access_files(bytes));

//! Fuzzes the parser of fio's job files: one input is a job file and, after a zero byte, the
//! content of every file that it includes.
//!
//! The fuzzer demands: no panic, errors with a text, and file sizes above 0. No job is run.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_experiments::load::jobfile::{Includes, JobFile};

struct Rest<'a>(&'a [u8]);

impl Includes for Rest<'_> {
    fn file(&self, _: &str) -> std::io::Result<Vec<u8>> {
        Ok(self.0.to_vec())
    }

    fn variable(&self, name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    fn system(&self, _: &str) -> u64 {
        4096
    }
}

fuzz_target!(|input: &[u8]| {
    let cut = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let (file, rest) = input.split_at(cut);
    match JobFile::parse("f.fio", file, &Rest(rest.get(1..).unwrap_or(&[]))) {
        Ok(file) => file.jobs.iter().for_each(|job| {
            assert!(job.file_bytes().is_none_or(|bytes| bytes > 0));
        }),
        Err(error) => assert!(!error.text.is_empty()),
    }
});

//! `Names`: which process a number is, as a trace's notes say.
//!
//! The first name of a process stays, as blkparse has it. Filled by `reader.rs`, asked by `Show`.
//! Bounded: a trace may name any number of processes, and only the first `NAMES_MAX` are kept.

use std::collections::HashMap;

/// Names that are kept; about 4 MiB.
const NAMES_MAX: usize = 65_536;
/// Bytes of a name, as in the kernel.
const NAME_BYTES_MAX: usize = 16;

/// Names of processes.
#[derive(Debug, Default)]
pub struct Names(HashMap<u32, Box<[u8]>>);

impl Names {
    /// Notes a name, unless the process has one: the bytes up to the first zero.
    pub(super) fn add(&mut self, pid: u32, data: &[u8]) {
        if self.0.len() < NAMES_MAX && !self.0.contains_key(&pid) {
            let name = data.split(|byte| *byte == 0).next().unwrap_or_default();
            self.0.insert(pid, name[..name.len().min(NAME_BYTES_MAX)].into());
        }
    }

    /// The name of a process, of any bytes; what blkparse prints if there is none.
    #[must_use]
    pub fn of(&self, pid: u32) -> &[u8] {
        self.0.get(&pid).map_or(b"(null)", |name| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_stays_and_ends_at_its_zero() {
        let mut names = Names::default();
        names.add(7, b"fio\0\0junk");
        names.add(7, b"dd\0");
        assert_eq!((names.of(7), names.of(8)), (&b"fio"[..], &b"(null)"[..]));
    }
}

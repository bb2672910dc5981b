//! `FileCosts`: CPU time of Linux 4.4 for file I/O outside of the block layer, which a simulated
//! machine charges.
//!
//! The constants and their origins come from `machines/linux-4.4.toml`. job.rs adds them to direct
//! I/O to a file, program/access.rs to the system calls of simulated programs. The result page of a
//! paper lists the constants.

use millrace_block::Op;
use millrace_simulator::Cost;
use serde::Deserialize;

use super::machines::read_costs;
use crate::load::bench::BenchError;

const LINUX_4_4: &str = include_str!("../../machines/linux-4.4.toml");

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileCosts {
    pub(crate) name: String,
    file: Costs,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Costs {
    map: Cost,
    overwrite: Cost,
    page: Cost,
    write_back: Cost,
    name: Cost,
    change: Cost,
}

impl FileCosts {
    pub(crate) fn linux_4_4() -> Result<FileCosts, BenchError> {
        read_costs(("linux-4.4", LINUX_4_4), FileCosts::entries)
    }

    pub(crate) fn entries(&self) -> Vec<(&'static str, &Cost)> {
        let Costs { map, overwrite, page, write_back, name, change } = &self.file;
        vec![
            ("direct I/O to a file: mapping the offset to blocks of the volume", map),
            ("direct write to a file: additional cost over a read", overwrite),
            ("copying a page of 4 KiB from or to the page cache", page),
            ("writing back a page, charged to the flusher's CPU", write_back),
            ("looking up a file name, or closing a file", name),
            ("creating or deleting a file", change),
        ]
    }

    pub(crate) fn direct_ns(&self, op: Op) -> u64 {
        let more = if op.is_write() { self.file.overwrite.ns } else { 0.0 };
        (self.file.map.ns + more) as u64
    }

    pub(crate) fn pages_ns(&self, pages: u64) -> u64 {
        (self.file.page.ns * pages as f64) as u64
    }

    pub(crate) fn write_back_ns(&self, pages: u64) -> u64 {
        (self.file.write_back.ns * pages as f64) as u64
    }

    pub(crate) fn name_ns(&self) -> u64 {
        self.file.name.ns as u64
    }

    pub(crate) fn change_ns(&self) -> u64 {
        self.file.change.ns as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_and_a_write_takes_more_than_a_read() {
        let costs = FileCosts::linux_4_4().expect("the built-in file must be valid");
        assert_eq!((costs.name.as_str(), costs.entries().len()), ("linux-4.4", 6));
        assert!(costs.direct_ns(Op::Write) > costs.direct_ns(Op::Read));
        assert_eq!(costs.pages_ns(2), 2 * costs.pages_ns(1));
    }
}

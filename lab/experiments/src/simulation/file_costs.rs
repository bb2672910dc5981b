//! `FileCosts`: what Linux 4.4 takes for files beside the layer, charged to a simulated machine.
//!
//! From the file `machines/linux-4.4.toml`, each constant with its origin. Charged by job.rs for
//! direct I/O of a file and by programs/access.rs for calls of programs. Shown beside the machine.

use millrace_block::Op;
use millrace_simulator::Cost;
use serde::Deserialize;

use super::machines::check_origins;
use crate::load::bench::BenchError;

/// The file that comes with the program.
const LINUX_4_4: &str = include_str!("../../machines/linux-4.4.toml");

/// What Linux 4.4 takes for files.
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
    /// Those of the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn linux_4_4() -> Result<FileCosts, BenchError> {
        let wrong = |text: String| BenchError::Machine { text: format!("linux-4.4: {text}") };
        let costs: FileCosts =
            toml::from_str(LINUX_4_4).map_err(|error| wrong(error.to_string()))?;
        check_origins(LINUX_4_4).map_err(wrong)?;
        for (name, cost) in costs.entries() {
            if !(0.0..=1e9).contains(&cost.ns) {
                return Err(wrong(format!("{name}: a time of 0 to 1e9 ns")));
            }
        }
        Ok(costs)
    }

    /// All entries, in words.
    pub(crate) fn entries(&self) -> [(&'static str, &Cost); 6] {
        let Costs { map, overwrite, page, write_back, name, change } = &self.file;
        [
            ("direct I/O of a file: its place on the volume", map),
            ("direct write of a file: what a read has not", overwrite),
            ("a page of 4 KiB copied from or to the page cache", page),
            ("a page written back, on the flusher's CPU", write_back),
            ("a name looked up or closed", name),
            ("a file made or deleted", change),
        ]
    }

    /// Nanoseconds that a direct I/O of a file takes at its submission.
    pub(crate) fn direct_ns(&self, op: Op) -> u64 {
        let more = if op.is_write() { self.file.overwrite.ns } else { 0.0 };
        (self.file.map.ns + more) as u64
    }

    /// Nanoseconds to copy so many pages.
    pub(crate) fn pages_ns(&self, pages: u64) -> u64 {
        (self.file.page.ns * pages as f64) as u64
    }

    /// Nanoseconds that the flusher takes for so many pages that it writes back.
    pub(crate) fn write_back_ns(&self, pages: u64) -> u64 {
        (self.file.write_back.ns * pages as f64) as u64
    }

    /// Nanoseconds to look a name up, or to close it.
    pub(crate) fn name_ns(&self) -> u64 {
        self.file.name.ns as u64
    }

    /// Nanoseconds to make or to delete a file.
    pub(crate) fn change_ns(&self) -> u64 {
        self.file.change.ns as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_and_a_write_takes_more_than_a_read() {
        let costs = FileCosts::linux_4_4().expect("it comes with the program");
        assert_eq!((costs.name.as_str(), costs.entries().len()), ("linux-4.4", 6));
        assert!(costs.direct_ns(Op::Write) > costs.direct_ns(Op::Read));
        assert_eq!(costs.pages_ns(2), 2 * costs.pages_ns(1));
    }
}

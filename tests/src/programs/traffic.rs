//! Statistics of a program's recorded I/O: how many I/Os, how large, in which order.
//!
//! Counts the lines with Q that `millrace trace show` prints. Pure but for that command. Called by
//! the parent's callers.

use std::collections::VecDeque;
use std::path::Path;

use crate::traces::shown;

/// An I/O is in order if it begins where one of this many earlier ones ended. A file system that
/// reads ahead in one file and writes another does both in order.
const STREAMS: usize = 16;

/// Statistics of a program's I/Os.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// All I/Os: reads, writes, flushes and discards.
    pub ios: u64,
    /// Reads.
    pub reads: u64,
    /// Reads and writes.
    pub data_ios: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads and writes that begin where a recent one ended.
    pub in_order: u64,
}

impl Traffic {
    /// Statistics of the recording `name` in the directory `dir`.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn read(dir: &Path, name: &str) -> Traffic {
        Traffic::of(&shown(dir, &[name]))
    }

    /// Statistics of blkparse's lines.
    fn of(lines: &str) -> Traffic {
        let (mut traffic, mut ends) = (Traffic::default(), VecDeque::new());
        for line in lines.lines() {
            // 240,0 1 7 0.000012345 99 Q WS 2048 + 8 [client-1]
            let fields: Vec<&str> = line.split_whitespace().collect();
            let ["Q", kind, rest @ ..] = fields.get(5..).unwrap_or_default() else { continue };
            traffic.ios += 1;
            let number = |at: usize| rest.get(at).and_then(|text: &&str| text.parse::<u64>().ok());
            let (Some(sector), Some(sectors)) = (number(0), number(2)) else { continue };
            if sectors == 0 || kind.contains('D') {
                continue;
            }
            traffic.data_ios += 1;
            traffic.bytes += sectors << 9;
            if kind.contains('R') {
                traffic.reads += 1;
                traffic.read_bytes += sectors << 9;
            }
            traffic.in_order += u64::from(ends.contains(&sector));
            ends.push_back(sector + sectors);
            if ends.len() > STREAMS {
                ends.pop_front();
            }
        }
        traffic
    }

    /// Mean size of a read or write in bytes.
    #[must_use]
    pub fn mean_bytes(&self) -> f64 {
        self.bytes as f64 / self.data_ios.max(1) as f64
    }

    /// Share of `ios` in the reads and writes, from 0 to 1.
    #[must_use]
    pub fn share(&self, ios: u64) -> f64 {
        ios as f64 / self.data_ios.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_one_file_between_writes_of_another_are_in_order() {
        let line = |kind: &str, sector: u64, sectors: u64| {
            format!("240,0 1 7 0.000012345 99 Q {kind} {sector} + {sectors} [client-1]\n")
        };
        let mut text = line("R", 0, 8) + &line("W", 800, 16) + &line("R", 8, 8);
        text += &(line("WS", 816, 16) + &line("R", 100, 8) + &line("D", 816, 16));
        text += "240,0 1 8 0.000012345 99 Q FWS [client-1]\n";
        text += "240,0 1 9 0.000012345 99 C R 0 + 8 [0]\n";
        let traffic = Traffic::of(&text);
        let bytes = (3 * 8 + 2 * 16) * 512;
        let expected =
            Traffic { ios: 7, reads: 3, data_ios: 5, bytes, read_bytes: 12_288, in_order: 2 };
        assert_eq!(traffic, expected);
        assert_eq!(traffic.mean_bytes(), 5734.4);
    }
}

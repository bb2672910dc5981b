//! Service times of a simulated drive that is otherwise idle.
//!
//! The drive's timing model computes the times. Latency targets are checked against these times
//! before any measurement.

use millrace_random::mixed;

use super::config::ModelTiming;
use super::link::{ModelIo, ModelIoKind};
use super::timing::Timing;

/// Number of I/Os tried of each kind; odd, so that there is a median.
const TRIES: usize = 129;
/// Minimum pause between two sample I/Os, after which the drive is idle: 100 s in nanoseconds.
const APART_NS: u64 = 100_000_000_000;
/// Maximum random time added to each pause: 1 s in nanoseconds. A rotating disk turns many times in
/// 1 s, so each sample I/O finds the disk at a random angle.
const MORE_NS: u64 = 1_000_000_000;

/// Median times of a 4 KiB read and write on an idle drive, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsualTimes {
    /// Median time of a read.
    pub read_ns: u64,
    /// Median time of a write.
    pub write_ns: u64,
}

impl UsualTimes {
    pub(super) fn of(timing: &ModelTiming, size_bytes: u64) -> UsualTimes {
        let median = |kind| {
            let mut drive = Timing::new(timing);
            let pages = (size_bytes >> 12).max(1);
            let time_ns = |at: u64| {
                let sector = mixed(2 * at) % pages * 8;
                let now_ns = at * APART_NS + mixed(2 * at + 1) % MORE_NS;
                drive.submit(now_ns, ModelIo { kind, sector, nr_sectors: 8 }, None) - now_ns
            };
            let mut times: Vec<u64> = (1..=TRIES as u64).map(time_ns).collect();
            times.sort_unstable();
            times[TRIES / 2]
        };
        UsualTimes { read_ns: median(ModelIoKind::Read), write_ns: median(ModelIoKind::Write) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::model_presets;

    #[test]
    fn presets_usually_take_what_their_data_sheets_say() {
        for preset in model_presets() {
            let config = preset.config();
            let usual = UsualTimes::of(&config.timing, config.size_bytes);
            let near = |found: u64, stated: u64| found.abs_diff(stated) <= stated / 4;
            let (read_ns, write_ns) = preset.latency_ns;
            let name = preset.name;
            assert!(near(usual.read_ns, read_ns), "{name}: {usual:?}, {:?}", preset.latency_ns);
            assert!(near(usual.write_ns, write_ns), "{name}: {usual:?}, {:?}", preset.latency_ns);
        }
    }
}

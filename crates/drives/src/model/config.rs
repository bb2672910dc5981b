//! Settings of a simulated SSD, with range checks.
//!
//! Invariant of validated settings: the arithmetic of `timing.rs` never divides by zero, and does
//! not overflow for centuries of virtual time.

use std::sync::Arc;
use std::time::Duration;

use super::controller::ModelController;
use super::rotating::ModelDisk;
use crate::common::units::duration_text;

const LONGEST: Duration = Duration::from_secs(60);

/// Storage of a simulated drive's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ModelContents {
    /// Written data are dropped; a read leaves the reader's memory unchanged.
    #[default]
    None,
    /// Data are kept in sparse memory until the process ends.
    Ram,
}

/// Settings of a simulated SSD.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes, a power of two from 512 to 65,536. `Disk::new` checks it.
    pub block_size: u32,
    /// Maximum number of hardware queues, 1 to 2048.
    pub queues: u16,
    /// Number of tags of each queue, 1 to 65,536.
    pub depth: u32,
    /// Choice between dropping written data and keeping the data in memory.
    pub contents: ModelContents,
    /// Timing of the drive's operations.
    pub timing: ModelTiming,
    /// Controller that the drive shares with other drives, if any.
    pub controller: Option<Arc<ModelController>>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            size_bytes: 1 << 40,
            block_size: 512,
            queues: 128,
            depth: 1024,
            contents: ModelContents::None,
            timing: ModelTiming::default(),
            controller: None,
        }
    }
}

impl ModelConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        let range = |name: &str, value: u64, least: u64, most: u64| match value {
            value if (least..=most).contains(&value) => Ok(()),
            value => Err(format!("model drive: {name} is {value}; use {least} to {most}")),
        };
        range("size in bytes", self.size_bytes, 512, 1 << 60)?;
        range("queues", self.queues.into(), 1, 2048)?;
        range("depth", self.depth.into(), 1, 65_536)?;
        let timing = &self.timing;
        range("units", timing.units.into(), 1, ModelTiming::UNITS_MAX.into())?;
        let page = timing.page_bytes;
        if !(4096..=1 << 20).contains(&page) || !page.is_power_of_two() {
            let form = "use a power of two from 4096 to 1048576";
            return Err(format!("model drive: page size is {page}; {form}"));
        }
        for (name, time) in [
            ("read time", timing.read_time),
            ("write time", timing.write_time),
            ("latency", timing.latency),
            ("read command time", timing.read_command_time),
            ("write command time", timing.write_command_time),
            ("mean of the tail", timing.tail),
        ] {
            if time > LONGEST {
                let [time, longest] = [time, LONGEST].map(duration_text);
                return Err(format!("model drive: {name} is {time}; use 0 to {longest}"));
            }
        }
        for (name, share) in [("jitter", timing.jitter), ("share of the tail", timing.tail_share)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("model drive: {name} is {share}; use 0 to 1"));
            }
        }
        timing.disk.map_or(Ok(()), |disk| disk.validate())
    }
}

/// Timing of a simulated SSD.
///
/// The controller processes one command at a time. A command then travels to the units (any number
/// of commands at once), occupies a unit for each page (units work in parallel), and transfers its
/// data over the link (one transfer at a time in each direction).
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTiming {
    /// Number of parallel units (the dies on all channels), 1 to 4,096. Each page belongs to one of
    /// them.
    pub units: u32,
    /// Number of bytes that a unit reads or writes at a time: the flash page, counted over all
    /// planes. A power of two from 4 KiB to 1 MiB. A smaller I/O occupies a unit for the same time,
    /// except a write to the write buffer: buffered blocks are combined into whole pages.
    pub page_bytes: u32,
    /// Time in which a flash die (one of `units`) reads a page of `page_bytes`.
    pub read_time: Duration,
    /// Time in which a flash die (one of `units`) writes a page of `page_bytes`.
    pub write_time: Duration,
    /// Fixed latency of the controller and of the link in both directions, added to every command.
    pub latency: Duration,
    /// Time for which a read occupies the controller. Its inverse is the maximum number of random
    /// reads in a second.
    pub read_command_time: Duration,
    /// Time for which any command other than a read occupies the controller.
    pub write_command_time: Duration,
    /// Maximum bandwidth to the host in bytes per second; 0 for no limit.
    pub read_bytes_per_s: u64,
    /// Maximum bandwidth from the host in bytes per second; 0 for no limit.
    pub write_bytes_per_s: u64,
    /// Size of the volatile write buffer in bytes; 0 for none. A write completes when its data are
    /// in the buffer, and waits while the buffer is full. A flush empties the buffer.
    pub buffer_bytes: u64,
    /// Relative variation of the flash dies' read and write times, 0 to 1; 0.1 means that times are
    /// uniformly distributed from 90 % to 110 % of the configured time.
    pub jitter: f64,
    /// Share of I/Os, 0 to 1, that take an additional, exponentially distributed time in the flash
    /// dies (`units`).
    pub tail_share: f64,
    /// Mean of the additional time that `tail_share` of the I/Os take.
    pub tail: Duration,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Timing of a rotating disk. If set, the flash timing in the other fields is ignored.
    pub disk: Option<ModelDisk>,
}

impl ModelTiming {
    /// Maximum of [`ModelTiming::units`].
    pub const UNITS_MAX: u32 = 4096;
}

impl Default for ModelTiming {
    fn default() -> Self {
        ModelTiming {
            units: 16,
            page_bytes: 4096,
            read_time: Duration::from_micros(80),
            write_time: Duration::from_micros(200),
            latency: Duration::from_micros(10),
            read_command_time: Duration::ZERO,
            write_command_time: Duration::ZERO,
            read_bytes_per_s: 0,
            write_bytes_per_s: 0,
            buffer_bytes: 0,
            jitter: 0.0,
            tail_share: 0.0,
            tail: Duration::ZERO,
            seed: 0,
            disk: None,
        }
    }
}

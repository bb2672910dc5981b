//! Settings of a modelled SSD: plain data with checks; `preset.rs` has known drives.
//!
//! Times are in nanoseconds, rates in bytes a second, sizes in bytes. Made by `open.rs` from specs
//! and by programs; read by `timing.rs` and the driver. Invariant of a validated value: no division
//! by zero and no overflow in the arithmetic of `timing.rs` for centuries of virtual time.

use std::sync::Arc;

use super::controller::ModelController;
use super::rotating::ModelDisk;

/// Longest time that a setting may name: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// What becomes of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModelContents {
    /// Nothing: reads leave memory as it is, writes are dropped.
    #[default]
    None,
    /// They are kept in memory, sparse, and lost at the end of the process.
    Ram,
}

/// Settings of a modelled SSD.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes, a power of two of 512 or more.
    pub block_size: u32,
    /// Most hardware queues, 1 to 2048.
    pub queues: u16,
    /// Tags of each, 1 to 65,536.
    pub depth: u32,
    /// What becomes of the bytes.
    pub contents: ModelContents,
    /// How long everything takes.
    pub timing: ModelTiming,
    /// What it shares with other drives.
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
    /// Says what is wrong, if something is.
    ///
    /// # Errors
    /// A sentence that names the field, its value and its range.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let range = |name: &str, value: u64, least: u64, most: u64| match value {
            value if (least..=most).contains(&value) => Ok(()),
            value => Err(format!("model drive: {name} is {value}, not {least} to {most}")),
        };
        range("size in bytes", self.size_bytes, 512, 1 << 60)?;
        range("queues", self.queues.into(), 1, 2048)?;
        range("depth", self.depth.into(), 1, 65_536)?;
        let timing = &self.timing;
        range("units", timing.units.into(), 1, ModelTiming::UNITS_MAX.into())?;
        let page_bytes = timing.page_bytes;
        if !(4096..=1 << 20).contains(&page_bytes) || !page_bytes.is_power_of_two() {
            return Err(format!(
                "model drive: page size is {page_bytes}, not a power of two of 4096 to 1048576"
            ));
        }
        for (name, time_ns) in [
            ("read time", timing.read_ns),
            ("write time", timing.write_ns),
            ("latency", timing.latency_ns),
            ("read command time", timing.read_command_ns),
            ("write command time", timing.write_command_ns),
            ("mean of the tail", timing.tail_ns),
        ] {
            range(name, time_ns, 0, LONGEST_NS)?;
        }
        for (name, share) in [("jitter", timing.jitter), ("share of the tail", timing.tail_share)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("model drive: {name} is {share}, not 0 to 1"));
            }
        }
        timing.disk.map_or(Ok(()), |disk| disk.validate())
    }
}

/// How long things take in a modelled SSD.
///
/// A command is processed (one at a time), travels (any number at once), occupies its unit for each
/// page (units work at once), and its data cross the link (one direction at a time each).
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTiming {
    /// Parallel units (dies on all channels), 1 to 4,096; a page lives on one of them.
    pub units: u32,
    /// Bytes that a unit reads or writes in one such time, 4 KiB or a power of two of that: its
    /// flash page, of all its planes. I/Os of less take a unit as long.
    pub page_bytes: u32,
    /// Time of a unit to read a page.
    pub read_ns: u64,
    /// Time of a unit to write a page.
    pub write_ns: u64,
    /// Fixed time of the controller and the way there and back, for every command.
    pub latency_ns: u64,
    /// Time for which a read keeps the controller from other commands: a second of it is the most
    /// random reads that the drive does in a second.
    pub read_command_ns: u64,
    /// Time for which any other command than a read keeps the controller from other commands.
    pub write_command_ns: u64,
    /// Most bytes a second to the host; 0 for no limit.
    pub read_bytes_per_s: u64,
    /// Most bytes a second from the host; 0 for no limit.
    pub write_bytes_per_s: u64,
    /// Write buffer in bytes: a write completes when it is there, and waits for room while the
    /// units are behind. 0 for none. The buffer is volatile: a flush empties it.
    pub buffer_bytes: u64,
    /// Times of the units vary evenly by this fraction to both sides, 0 to 1.
    pub jitter: f64,
    /// This share of I/Os, 0 to 1, takes longer at its units, by an exponentially distributed time.
    pub tail_share: f64,
    /// Mean of that time.
    pub tail_ns: u64,
    /// Decides all that is random.
    pub seed: u64,
    /// The drive is a disk that rotates, which takes such times instead of all those above.
    pub disk: Option<ModelDisk>,
}

impl ModelTiming {
    /// Most units.
    pub const UNITS_MAX: u32 = 4096;
}

impl Default for ModelTiming {
    fn default() -> Self {
        ModelTiming {
            units: 16,
            page_bytes: 4096,
            read_ns: 80_000,
            write_ns: 200_000,
            latency_ns: 10_000,
            read_command_ns: 0,
            write_command_ns: 0,
            read_bytes_per_s: 0,
            write_bytes_per_s: 0,
            buffer_bytes: 0,
            jitter: 0.0,
            tail_share: 0.0,
            tail_ns: 0,
            seed: 0,
            disk: None,
        }
    }
}

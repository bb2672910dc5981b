//! Presets: settings that simulate known drives, with the published figures from which they are
//! derived.
//!
//! Published figures are random 4 KiB IOPS at a stated depth, sequential bandwidth at 128 KiB, and
//! latency at queue depth 1. A preset turns random IOPS into the time of one command and bandwidth
//! into the rate of the link. The rest of the latency is the time of a flash die. Tests run each
//! preset in virtual time and compare.
//!
//! Sources:
//! - 850 EVO 500 GB: Samsung's data sheet (at depth 1, 10 K random reads and 40 K random writes per
//!   second); AnandTech's review of December 2014 (32 dies).
//! - 950 PRO 512 GB: Samsung's data sheet (at depth 1, 12 K and 43 K; the maximum, with four
//!   threads of depth 32, is quoted from memory); AnandTech's review of the 960 PRO, October 2016
//!   (dies of 128 Gbit in the 950 PRO, so 32 dies).
//! - Samsung's SATA drives: AnandTech's review of the 860 PRO, January 2018. Most of them reach
//!   almost 400 MB/s of random reads, their limit, at a depth of about 16.
//! - Intel 520: see the comment at the preset; for the link, the evaluation of \[FALCON\].
//! - Optane P5800X 800 GB: Intel's specification.
//! - NVMe drive of \[MIOT\]: limits from the paper's evaluation; the latency is a guess.
//! - NVMe drive of \[WALK\]: 25.3 us from D to C; all other figures are guesses.
//! - Ultrastar DC HC310: Western Digital's OEM specification (seeks, rotation). The rate, a mean
//!   over the zones, is a guess.

use std::time::Duration;

use super::config::{ModelConfig, ModelTiming};
use super::rotating::ModelDisk;

/// A known drive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelPreset {
    /// Name in specs.
    pub name: &'static str,
    /// Interface and model of the drive, for lists of presets.
    pub about: &'static str,
    /// Random reads and writes of 4 KiB in a second, at queue depth `depth`.
    pub random_iops: (u64, u64),
    /// Queue depth at which the drive reaches `random_iops`.
    pub depth: u32,
    /// Sequential read and write bandwidth, in bytes per second.
    pub bytes_per_s: (u64, u64),
    /// Latency of a single random 4 KiB read and write.
    pub latency: (Duration, Duration),
    size_bytes: u64,
    queues: u16,
    queue_depth: u32,
    /// Number of dies, and bytes of a flash page over all planes of a die.
    dies: (u32, u32),
    read_time: Duration,
    write_time: Duration,
    fixed_latency: Duration,
    buffer_bytes: u64,
    disk: Option<ModelDisk>,
}

const MB: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const GB: u64 = 1_000 * MB;

const fn ns(number: u64) -> Duration {
    Duration::from_nanos(number)
}

const EVO_850: ModelPreset = ModelPreset {
    name: "850evo",
    about: "SATA, TLC with an SLC cache: Samsung 850 EVO 500 GB class",
    random_iops: (98_000, 90_000),
    depth: 32,
    bytes_per_s: (540 * MB, 520 * MB),
    latency: (ns(97_800), ns(26_000)),
    size_bytes: 500 * GB,
    queues: 1,
    queue_depth: 32,
    dies: (32, 4096),
    read_time: ns(73_000),
    write_time: ns(160_000),
    fixed_latency: ns(7_000),
    buffer_bytes: 32 << 20,
    disk: None,
};

const PRO_950: ModelPreset = ModelPreset {
    name: "950pro",
    about: "NVMe, PCIe 3.0 x4, MLC: Samsung 950 PRO 512 GB class",
    random_iops: (300_000, 110_000),
    depth: 128,
    bytes_per_s: (2_500 * MB, 1_500 * MB),
    latency: (ns(83_000), ns(22_800)),
    size_bytes: 512 * GB,
    queues: 8,
    queue_depth: 1024,
    dies: (32, 16_384),
    read_time: ns(67_000),
    write_time: ns(300_000),
    fixed_latency: ns(11_000),
    buffer_bytes: 64 << 20,
    disk: None,
};

/// Intel SSD 520, modelled from these sources:
/// - Random rates: Intel's product specification 325968, quoted from memory: 50 K reads for the
///   family, and 42 K writes for the 480 GB model. The 120 GB model's lower rates (25 K and 40 K)
///   are not used, because the time of each command would be too long for sequential I/O.
/// - Read time of about 200 us: AnandTech measured 60 MB/s of random reads at depth 3 (February
///   2012).
/// - 16 dies: ITmedia found packages of 16 GB, that is, two dies of 64 Gbit, in the 240 GB model.
/// - Flash page of 16 KiB in two planes of 8 KiB: an assumption.
const INTEL_520: ModelPreset = ModelPreset {
    name: "520",
    about: "SATA III, MLC, no write buffer: Intel SSD 520 120 GB class, IOPS of larger models",
    random_iops: (50_000, 42_000),
    depth: 32,
    bytes_per_s: (550 * MB, 520 * MB),
    latency: (ns(185_400), ns(104_700)),
    size_bytes: 120 * GB,
    queues: 1,
    queue_depth: 32,
    dies: (16, 16_384),
    read_time: ns(155_000),
    write_time: ns(70_000),
    fixed_latency: ns(3_000),
    buffer_bytes: 0,
    disk: None,
};

const HDD_7200: ModelPreset = ModelPreset {
    name: "hdd7200",
    about: "SATA disk of 7,200 rpm, one command at a time: Ultrastar DC HC310 6 TB class",
    // Each random I/O takes a seek and half a revolution.
    random_iops: (86, 81),
    depth: 32,
    bytes_per_s: (200 * MB, 200 * MB),
    latency: (ns(11_590_000), ns(12_390_000)),
    size_bytes: 6_000 * GB,
    queues: 1,
    queue_depth: 1,
    dies: (1, 4096),
    read_time: ns(0),
    write_time: ns(0),
    fixed_latency: ns(0),
    buffer_bytes: 0,
    disk: Some(ModelDisk {
        stroke_bytes: 6_000 * GB,
        rpm: 7_200,
        bytes_per_s: 200 * MB,
        track_seek: (ns(230_000), ns(320_000)),
        average_seek: (ns(7_400_000), ns(8_200_000)),
    }),
};

const PRESETS: [ModelPreset; 9] = [
    EVO_850,
    PRO_950,
    INTEL_520,
    ModelPreset {
        name: "520-sata2",
        about: "the Intel 520 on a SATA II link, as in the machine of the paper [FALCON]",
        bytes_per_s: (275 * MB, 275 * MB),
        latency: (ns(192_900), ns(111_700)),
        ..INTEL_520
    },
    ModelPreset {
        name: "miot-nvme",
        about: "the 1.5 TB NVMe drive of the paper [MIOT], MSST 2015",
        random_iops: (700_000, 340_000),
        depth: 128,
        bytes_per_s: (3_000 * MB, 1_400 * MB),
        latency: (ns(92_000), ns(15_900)),
        size_bytes: 1_500 * GB,
        queues: 32,
        dies: (256, 4096),
        read_time: ns(79_200),
        fixed_latency: ns(10_000),
        write_time: ns(600_000),
        ..PRO_950
    },
    ModelPreset {
        name: "walk-nvme",
        about: "an NVMe drive with the read latency that the paper [WALK] gives; everything else as 950pro",
        latency: (ns(25_300), ns(22_800)),
        read_time: ns(9_300),
        ..PRO_950
    },
    ModelPreset {
        name: "p5800x",
        about: "NVMe, PCIe 4.0 x4, 3D XPoint: Intel Optane P5800X 800 GB class",
        random_iops: (1_500_000, 1_350_000),
        depth: 128,
        bytes_per_s: (7_200 * MB, 6_100 * MB),
        latency: (ns(5_700), ns(5_900)),
        size_bytes: 800 * GB,
        queues: 128,
        queue_depth: 4096,
        dies: (56, 4096),
        read_time: ns(2_000),
        write_time: ns(2_000),
        fixed_latency: ns(2_500),
        buffer_bytes: 0,
        disk: None,
    },
    HDD_7200,
    ModelPreset {
        name: "ultrastar-36lzx",
        about: "SCSI disk of 10,000 rpm, one command at a time: IBM Ultrastar 36LZX (year 2000)",
        // A random I/O takes an average seek, 4.9 ms, and half a revolution, 3 ms. The sustained
        // rate is 21 to 36 MB/s. Source: Bryant, O'Hallaron, Computer Systems: A Programmer's
        // Perspective, 2003, figure 6.13. The seek times of writes, and of a seek to the next
        // track, are assumptions.
        random_iops: (127, 119),
        bytes_per_s: (36 * MB, 36 * MB),
        latency: (ns(7_900_000), ns(8_400_000)),
        size_bytes: 36 * GB,
        disk: Some(ModelDisk {
            stroke_bytes: 36 * GB,
            rpm: 10_000,
            bytes_per_s: 36 * MB,
            track_seek: (ns(600_000), ns(900_000)),
            average_seek: (ns(4_900_000), ns(5_400_000)),
        }),
        ..HDD_7200
    },
];

/// Returns all presets.
#[must_use]
pub fn model_presets() -> &'static [ModelPreset] {
    &PRESETS
}

impl ModelPreset {
    /// Returns the settings of this drive.
    #[must_use]
    pub fn config(&self) -> ModelConfig {
        ModelConfig {
            size_bytes: self.size_bytes >> 12 << 12,
            queues: self.queues,
            depth: self.queue_depth,
            timing: ModelTiming {
                units: self.dies.0,
                page_bytes: self.dies.1,
                read_time: self.read_time,
                write_time: self.write_time,
                latency: self.fixed_latency,
                read_command_time: ns(SECOND_NS / self.random_iops.0),
                write_command_time: ns(SECOND_NS / self.random_iops.1),
                read_bytes_per_s: self.bytes_per_s.0,
                write_bytes_per_s: self.bytes_per_s.1,
                buffer_bytes: self.buffer_bytes,
                disk: self.disk,
                jitter: 0.1,
                ..ModelTiming::default()
            },
            ..ModelConfig::default()
        }
    }
}

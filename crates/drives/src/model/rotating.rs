//! `RotatingDisk`: computes when a simulated rotating disk completes an I/O.
//!
//! The disk has one arm, and serves one I/O at a time, in order of arrival:
//! - Seek: takes `track + (full - track) * sqrt(d)`, where `d` is the distance as a fraction of the
//!   whole stroke. The root is there because the arm accelerates for half of the way. `full`, the
//!   time of the longest seek, is calculated from the configured mean seek time. The mean of
//!   `sqrt(d)` over all pairs of positions is 8/15.
//! - Rotation: the platter turns with time until the sector is under the head. Tracks are skewed,
//!   so that the next track begins when the arm arrives there.
//! - Transfer of the data.
//!
//! An I/O that starts where the last one ended needs no seek and no rotation. A real disk behaves
//! like this because of its read-ahead and write cache. Pure arithmetic, called by timing.rs.
//! Source: Ruemmler and Wilkes, "An introduction to disk drive modeling", 1994.

use std::time::Duration;

use millrace_machine::nanoseconds;

use super::link::{ModelIo, ModelIoKind, transfer_ns};

/// Timing of a simulated rotating disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelDisk {
    /// Size of the whole disk in bytes, 1 MiB or more. A smaller drive uses the outer tracks.
    pub stroke_bytes: u64,
    /// Revolutions in a minute, 1,000 to 60,000.
    pub rpm: u32,
    /// Transfer rate from or to the medium in bytes per second, 1 MB or more.
    pub bytes_per_s: u64,
    /// Time of a seek to the next track: for reads, and for all other I/Os.
    pub track_seek: (Duration, Duration),
    /// Mean time of a seek between two random positions: for reads, and for all other I/Os.
    pub average_seek: (Duration, Duration),
}

const SECOND: Duration = Duration::from_secs(1);
const SECOND_NS: u64 = 1_000_000_000;
/// Mean of the square root of the distance between two random points on a line of length 1.
const MEAN_ROOT: f64 = 8.0 / 15.0;

impl ModelDisk {
    /// Returns the time of a revolution.
    #[must_use]
    pub fn revolution(&self) -> Duration {
        Duration::from_nanos(self.revolution_ns())
    }

    fn revolution_ns(&self) -> u64 {
        60 * SECOND_NS / u64::from(self.rpm.max(1))
    }

    fn track_sectors(&self) -> u64 {
        (self.bytes_per_s * self.revolution_ns() / 1_000_000_000 / 512).max(1)
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        let ordered = |track: Duration, average| track <= average && average <= SECOND;
        let is_sound = self.stroke_bytes >= 1 << 20
            && (1_000..=60_000).contains(&self.rpm)
            && self.bytes_per_s >= 1_000_000
            && ordered(self.track_seek.0, self.average_seek.0)
            && ordered(self.track_seek.1, self.average_seek.1);
        if is_sound {
            return Ok(());
        }
        Err(format!(
            "model drive: disk {self:?} is out of range; it needs a stroke of 1 MiB or more, 1,000 \
             to 60,000 rpm, 1 MB/s or more, and seeks up to 1 s, to a track no longer than on \
             average"
        ))
    }
}

#[derive(Debug)]
pub(super) struct RotatingDisk {
    disk: ModelDisk,
    free_ns: u64,
    /// Sector after the last one transferred. An I/O that starts here needs no seek and no
    /// rotation.
    end: u64,
}

impl RotatingDisk {
    pub(super) fn new(disk: ModelDisk) -> RotatingDisk {
        RotatingDisk { disk, free_ns: 0, end: 0 }
    }

    pub(super) fn submit(&mut self, now_ns: u64, io: ModelIo) -> u64 {
        let start_ns = self.free_ns.max(now_ns);
        self.free_ns = start_ns;
        if !matches!(io.kind, ModelIoKind::Flush | ModelIoKind::Command) {
            let there_ns = self.position(start_ns, io);
            self.end = io.sector + u64::from(io.nr_sectors);
            self.free_ns = there_ns + transfer_ns(io.nr_sectors, self.disk.bytes_per_s);
        }
        self.free_ns
    }

    fn position(&self, start_ns: u64, io: ModelIo) -> u64 {
        if io.sector == self.end {
            return start_ns;
        }
        let revolution_ns = self.disk.revolution_ns();
        let arrived_ns = start_ns + self.seek_ns(io);
        let track_sectors = self.disk.track_sectors();
        let (track, within) = (io.sector / track_sectors, io.sector % track_sectors);
        // Angles of the sector and of the head, as times since the start of the revolution.
        let skew_ns = track % revolution_ns * (nanoseconds(self.disk.track_seek.0) % revolution_ns);
        let lies_ns = (within * revolution_ns / track_sectors + skew_ns) % revolution_ns;
        let head_ns = arrived_ns % revolution_ns;
        arrived_ns + (lies_ns + revolution_ns - head_ns) % revolution_ns
    }

    fn seek_ns(&self, io: ModelIo) -> u64 {
        let track_sectors = self.disk.track_sectors();
        let distance = (io.sector / track_sectors).abs_diff(self.end / track_sectors);
        if distance == 0 {
            return 0;
        }
        let (track, average) = match io.kind {
            ModelIoKind::Read => (self.disk.track_seek.0, self.disk.average_seek.0),
            _ => (self.disk.track_seek.1, self.disk.average_seek.1),
        };
        let tracks = (self.disk.stroke_bytes >> 9) / track_sectors;
        let part = ((distance - 1) as f64 / tracks.max(1) as f64).min(1.0);
        // Difference between the longest seek and a seek to the next track.
        let more_ns = nanoseconds(average - track) as f64 / MEAN_ROOT;
        nanoseconds(track) + (more_ns * part.sqrt()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    const DISK: ModelDisk = ModelDisk {
        stroke_bytes: 1_000_000_000_000,
        rpm: 6_000,
        bytes_per_s: 51_200_000,
        track_seek: (ms(1), ms(2)),
        average_seek: (ms(9), ms(10)),
    };
    const REVOLUTION_NS: u64 = 10_000_000;
    /// Sectors of a track: 51.2 MB/s for 10 ms.
    const TRACK: u64 = 1_000;

    fn io(kind: ModelIoKind, sector: u64, nr_sectors: u32) -> ModelIo {
        ModelIo { kind, sector, nr_sectors }
    }

    fn read(sector: u64) -> ModelIo {
        io(ModelIoKind::Read, sector, 1)
    }

    #[test]
    fn following_io_takes_its_transfer_only_and_ios_take_turns() {
        let mut disk = RotatingDisk::new(DISK);
        let ends: Vec<u64> =
            (0..4).map(|at| disk.submit(0, io(ModelIoKind::Read, at * 100, 100))).collect();
        assert_eq!(ends, [1_000_000, 2_000_000, 3_000_000, 4_000_000]);
        // Idle, and then on from there.
        assert_eq!(disk.submit(50_000_000, read(400)), 50_010_000);
        assert_eq!(disk.submit(0, io(ModelIoKind::Flush, 0, 0)), 50_010_000);
    }

    #[test]
    fn a_sector_of_the_same_track_comes_by_within_a_revolution() {
        for (sector, now_ns, done_ns) in [
            (500, 0, 5_010_000),
            (500, 5_000_000, 5_010_000),
            (500, 5_000_001, 15_010_000),
            (999, 20_000_000, 30_000_000),
        ] {
            let found = RotatingDisk::new(DISK).submit(now_ns, read(sector));
            assert_eq!(found, done_ns, "sector {sector} at {now_ns}");
        }
    }

    #[test]
    fn the_next_track_begins_where_the_arm_arrives() {
        let mut disk = RotatingDisk::new(DISK);
        // To the end of track 0; then not its first sector, so the arm has to go there.
        assert_eq!(disk.submit(0, io(ModelIoKind::Read, 0, 999)), 9_990_000);
        let done_ns = disk.submit(9_990_000, read(TRACK));
        assert_eq!(done_ns, REVOLUTION_NS + 1_000_000 + 10_000);
    }

    #[test]
    fn random_places_cost_the_stated_seek_and_half_a_revolution() {
        for (kind, seek_ns) in [(ModelIoKind::Read, 9_000_000), (ModelIoKind::Write, 10_000_000)] {
            let (mut disk, mut now_ns) = (RotatingDisk::new(DISK), 0);
            let sectors = DISK.stroke_bytes >> 9;
            const IOS: u64 = 20_000;
            for number in 0..IOS {
                now_ns = disk.submit(now_ns, io(kind, millrace_random::mixed(number) % sectors, 1));
            }
            let mean = now_ns as f64 / IOS as f64;
            let stated = (seek_ns + REVOLUTION_NS / 2) as f64;
            assert!((mean / stated - 1.0).abs() < 0.01, "{kind:?}: {mean}, not {stated}");
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        assert_eq!(DISK.validate(), Ok(()));
        for wrong in [
            ModelDisk { rpm: 0, ..DISK },
            ModelDisk { stroke_bytes: 0, ..DISK },
            ModelDisk { bytes_per_s: 0, ..DISK },
            ModelDisk { track_seek: (ms(10), ms(0)), ..DISK },
            ModelDisk { average_seek: (ms(9), ms(0)), ..DISK },
            ModelDisk { average_seek: (ms(9), ms(2_000)), ..DISK },
        ] {
            let text = wrong.validate().unwrap_err();
            assert!(text.contains("is out of range"), "{text}");
        }
    }
}

//! Real programs on a volume: cp and tar over ext4, recorded, and replayed in more than one way.
//!
//! `Kind` names the programs. `volume` serves a volume with a file system and runs programs there
//! while `millrace trace record` records the volume's I/O; `guest` does so in a guest. `traffic` is
//! the statistics of a recording, and `replayed` the time to repeat its I/O over modelled drives.
//! The programs are this machine's own (the guest's are busybox's), and so are the file system, its
//! page cache and its read-ahead: nothing here makes an I/O by itself. Called by a test, and by
//! `cargo xtask programs`, which prints the tables.
//!
//! Source of the experiment, and of the ratios: \[FALCON\], copy-from, copy-to, tar, untar.

mod files;
mod guest;
mod replayed;
mod traffic;
mod volume;

pub use files::Amounts;
pub use guest::in_guest;
pub use replayed::{Rig, Serving, Times};
pub use traffic::Traffic;
pub use volume::{Recordings, model, real};

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `cp` of a long file from elsewhere to the volume.
    CopyTo,
    /// `cp` of a long file of the volume to elsewhere.
    CopyFrom,
    /// `tar` packs a tree of the volume into an archive there.
    Tar,
    /// `tar` unpacks an archive of the volume there.
    Untar,
}

impl Kind {
    /// All programs, in an order in which each finds the files that it reads.
    pub const ALL: [Kind; 4] = [Kind::CopyTo, Kind::CopyFrom, Kind::Untar, Kind::Tar];

    /// The program's name, shared by the modelled program of `millrace-lab bench --program`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::CopyTo => "copy-to",
            Kind::CopyFrom => "copy-from",
            Kind::Tar => "tar",
            Kind::Untar => "untar",
        }
    }

    /// \[FALCON\]'s speed-up over Linux's path, measured with the program itself.
    #[must_use]
    pub fn paper(self) -> f64 {
        match self {
            Kind::CopyFrom => 1.63,
            Kind::CopyTo => 2.81,
            Kind::Tar => 1.29,
            Kind::Untar => 1.09,
        }
    }
}

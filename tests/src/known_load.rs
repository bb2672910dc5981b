//! A stripe of two file drives, and a load whose I/Os on each of them are known exactly.
//!
//! Pure except for the daemon that it starts and the connection to it. Called by the tests of views
//! and recordings, which count I/Os.

use crate::Daemon;
use crate::raw_nbd::RawNbd;
use crate::serving::pattern;

/// The volume `v` at `unix:s` with the control socket `unix:c`. It ends in the `[server]` section:
/// more of its keys may be appended, or more sections.
pub const CONFIG: &str = "[[drive]]\nname = \"d0\"\nspec = \"file:path=d0,size=64m\"\n\
                          [[drive]]\nname = \"d1\"\nspec = \"file:path=d1,size=64m\"\n\
                          [[volume]]\nname = \"v\"\nchunk = \"64k\"\ndrives = [\"d0\", \"d1\"]\n\
                          [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
                          [server]\ncontrol = \"unix:c\"\n";

/// A daemon that serves [`CONFIG`] and `more`.
///
/// # Panics
/// As [`Daemon::start`].
#[must_use]
pub fn serve(more: &str) -> Daemon {
    Daemon::start(&format!("{CONFIG}{more}"), &["s", "c"])
}

/// Runs 10 writes and 7 reads of 4 KiB on each drive, one at a time. Returns the connection for
/// more.
///
/// # Panics
/// If it is refused.
#[must_use]
pub fn on_each_drive(daemon: &Daemon) -> RawNbd {
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").expect("the daemon serves");
    for drive in 0..2 {
        for block in 0..10 {
            let place = drive * 65_536 + block * 4096;
            raw.write(place, &pattern(4096, block)).expect("the daemon answers");
        }
        for block in 0..7 {
            raw.read(drive * 65_536 + block * 4096, 4096).expect("the daemon answers");
        }
    }
    raw
}

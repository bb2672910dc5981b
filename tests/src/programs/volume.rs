//! A volume with a file system on which programs run, and the recordings of their I/O.
//!
//! A daemon serves a drive in memory over NBD; nbdfuse makes the export a file; a loop device
//! (without page cache) makes the file a block device; the kernel's ext4 lies on that. Queue limits
//! are those of \[FALCON\]'s kernel: bios of 1 MiB at most, read-ahead of 128 KiB. Each program
//! begins with a cold cache, and its recording ends when all its data are written. Modelled
//! programs are recorded likewise, at a daemon whose drive is `null`. Called by the parent's
//! callers.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::files::{self, Amounts};
use super::{Kind, Traffic};
use crate::mounted::{Fuse, Loop, Mount};
use crate::recording::{begin, end};
use crate::serving::{succeed, uri};
use crate::{Daemon, client, millrace_lab, tempdir};

/// Most bytes of a bio and of a read-ahead, in KiB.
pub(super) const BIO_KIB: u32 = 1024;
pub(super) const READ_AHEAD_KIB: u32 = 128;
/// Length of a modelled program's run, which is recorded from the start.
const MODEL_RUNTIME: &str = "200ms";

/// Recordings of programs, in the directory of the daemon that wrote them, which goes with this.
pub struct Recordings {
    daemon: Daemon,
}

impl Recordings {
    pub(super) fn of(daemon: Daemon) -> Recordings {
        Recordings { daemon }
    }

    /// Each program with the statistics of its I/O.
    ///
    /// # Panics
    /// If a recording cannot be read.
    #[must_use]
    pub fn traffic(&self) -> Vec<(Kind, Traffic)> {
        let of = |kind: &Kind| (*kind, Traffic::read(self.daemon.dir(), kind.name()));
        Kind::ALL.iter().map(of).collect()
    }

    /// The directory of the recordings, which have the programs' names.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.daemon.dir()
    }
}

fn serve(drive: &str) -> Daemon {
    let config = format!(
        "[[drive]]\nname = \"d0\"\nspec = \"{drive}\"\n[[volume]]\nname = \"v\"\n\
         drives = [\"d0\"]\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
         [server]\ncontrol = \"unix:c\"\n"
    );
    Daemon::start(&config, &["s", "c"])
}

/// Runs this machine's cp and tar on a volume, and records each. Needs what
/// [`obstacle`](crate::mounted::obstacle) looks for.
///
/// # Panics
/// If a program fails, as all here.
#[must_use]
pub fn real(amounts: Amounts) -> Recordings {
    let work = tempdir();
    let daemon = serve(&format!("ram:size={}m", amounts.volume_mib()));
    let fuse = Fuse::over_one_connection(&uri(&daemon, "v"), &work.path().join("fuse"));
    let mut make = Command::new(client("mkfs.ext4").expect("the caller has looked for it"));
    // Otherwise the kernel would write tables while a program is recorded.
    make.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(fuse.disk());
    succeed(&mut make);
    let device = Loop::direct(&fuse.disk());
    device.set("max_sectors_kb", BIO_KIB.min(device.number("max_hw_sectors_kb")));
    device.set("read_ahead_kb", READ_AHEAD_KIB);
    let machine = Machine { daemon: &daemon, device: &device, work: work.path() };
    machine.prepare(amounts);
    Kind::ALL.iter().for_each(|kind| machine.record(*kind));
    device.detach();
    fuse.unmount();
    Recordings::of(daemon)
}

/// Where programs run.
struct Machine<'a> {
    daemon: &'a Daemon,
    device: &'a Loop,
    work: &'a Path,
}

impl Machine<'_> {
    /// The other end of copies.
    fn elsewhere(&self) -> PathBuf {
        self.work.join("elsewhere")
    }

    fn mount(&self) -> Mount {
        Mount::of_device(self.device, &self.work.join("mnt"))
    }

    /// Files elsewhere, and the archive on the volume.
    fn prepare(&self, amounts: Amounts) {
        let archive = files::make(&self.elsewhere(), amounts);
        let mount = self.mount();
        succeed(Command::new("cp").arg(archive).arg(mount.dir()));
        mount.unmount();
    }

    /// Runs a program with a cold page cache until its data are written, and records it.
    fn record(&self, kind: Kind) {
        let mount = self.mount();
        let (mnt, elsewhere) = (mount.dir(), self.elsewhere());
        let mut command = Command::new(if kind.is_copy() { "cp" } else { "tar" });
        match kind {
            Kind::CopyTo => command.arg(elsewhere.join("long")).arg(mnt.join("long")),
            Kind::CopyFrom => command.arg(mnt.join("long")).arg(elsewhere.join("copy")),
            Kind::Untar => command.arg("-C").arg(mnt).arg("-xf").arg(mnt.join("tree.tar")),
            Kind::Tar => {
                command.arg("-C").arg(mnt).arg("-cf").arg(mnt.join("again.tar")).arg("tree")
            }
        };
        let name = kind.name();
        let child = begin(self.daemon, &format!("-o {name} --action Q"), name);
        succeed(&mut command);
        succeed(Command::new("sync").arg("-f").arg(mnt));
        end(child);
        mount.unmount();
    }
}

impl Kind {
    fn is_copy(self) -> bool {
        matches!(self, Kind::CopyTo | Kind::CopyFrom)
    }
}

/// Records the modelled programs of `millrace-lab bench --program`, each on a drive of another
/// daemon.
///
/// # Panics
/// If one fails, as all here.
#[must_use]
pub fn model() -> Recordings {
    let daemon = serve("null:size=32g");
    let drive = format!("nbd:uri={}", uri(&daemon, "v"));
    for kind in Kind::ALL {
        let name = kind.name();
        let child = begin(&daemon, &format!("-o {name} --action Q"), name);
        let mut bench = millrace_lab();
        bench.args(["bench", "--program", name, "--runtime", MODEL_RUNTIME, "--drive", &drive]);
        succeed(&mut bench);
        end(child);
    }
    Recordings::of(daemon)
}

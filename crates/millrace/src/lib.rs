//! millrace as a library: a volume of drives under a program, with a queue pair for each thread.
//!
//! Re-exports what a program needs, and puts drives and volumes together ([`open_drive`],
//! [`build_volume`]) for programs and for the verbs of the `millrace` binary. A program opens a
//! [`Channel`] per submitting thread, submits bios with a number of its own, and polls completions,
//! as with io_uring. The layer itself is `millrace_block`; everything here runs on [`Native`].
//!
//! File drives work through the ring of the thread that uses them: a [`Channel`] makes one when it
//! needs it (`examples/file_volume.rs` reads and writes files). A program that has sockets or
//! timers on the same ring, or runs many channels in one loop, makes the ring itself:
//! [`IoContext`].
//!
//! # Example
//!
//! ```
//! use millrace::{Bio, Buffer, Channel, ChannelConfig, Layout, VolumeOptions, build_volume};
//!
//! let drives = ["null:size=1g".parse()?, "null:size=1g".parse()?];
//! let layout = Layout::Stripe { chunk_sectors: 128 };
//! let (volume, _notes) = build_volume("demo", layout, &drives, &VolumeOptions::default())?;
//! let mut channel = Channel::open(&volume, ChannelConfig::default())?;
//! for number in 0..8 {
//!     let bio = Bio::read(number * 8, Buffer::new(4096)).with_user_data(number);
//!     channel.submit(bio).map_err(|rejected| format!("{:?}", rejected.reason))?;
//! }
//! let done = channel.wait(8, |completion| assert!(completion.status.is_ok()));
//! assert_eq!(done, 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

//! A volume of several drives may be served by a thread for each drive ([`Serving::PerDrive`]).
//! The submitting thread then only hands batches to these threads:
//!
//! ```
//! use millrace::{
//!     Bio, Buffer, Channel, ChannelConfig, DriveWorkers, Layout, Machine, Native, Pinning,
//!     Serving, ServingConfig, VolumeOptions, build_volume, worker_cpus,
//! };
//!
//! let options = VolumeOptions {
//!     serving: ServingConfig::of(Serving::PerDrive),
//!     worker_cpus: worker_cpus(&Native::topology(), &[]),
//!     ..VolumeOptions::default()
//! };
//! let drives = ["ram:size=1m".parse()?, "ram:size=1m".parse()?];
//! let layout = Layout::Stripe { chunk_sectors: 8 };
//! let (volume, _notes) = build_volume("demo", layout, &drives, &options)?;
//! // The workers stop when this is dropped; without workers the submitting thread serves.
//! let workers = DriveWorkers::start(volume.disks(), Default::default(), Pinning::Free)?;
//! let mut channel = Channel::open(&volume, ChannelConfig::default())?;
//! for number in 0..64 {
//!     let bio = Bio::write(number * 8, Buffer::new(4096));
//!     channel.submit(bio).map_err(|rejected| format!("{:?}", rejected.reason))?;
//! }
//! let done = channel.wait(64, |completion| assert!(completion.status.is_ok()));
//! assert_eq!(done, 64);
//! # drop(workers);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assemble;
mod channel;
mod config;
mod opening;
#[cfg(feature = "serve")]
mod serve;
mod serving;
mod space;

pub use assemble::{
    DriveOptions, Host, OpenedDrive, SetupError, VolumeOptions, build_volume, drive_device,
    open_drive, unused_space, volume_device,
};
pub use channel::Channel;
pub use config::{DriveConfig, OpenConfig, Part, StartError, VolumeConfig};
pub use millrace_block::{
    Again, Bio, Buffer, ChannelConfig, Completion, ControllerConfig, Disk, Error, ErrorKind,
    Layout, Op, OpFlags, QueueLimits, Reject, Rejected, Sector, SectorCount, Serving,
    ServingConfig, Sharing, Spread, Stack, Stamp, Status,
};
pub use millrace_drives::Spec;
pub use millrace_machine::{CpuId, Machine, Native, Topology};
pub use millrace_runtime::{DriveWorkers, IoConfig, IoContext, Pinning, WorkerCpus, worker_cpus};
pub use opening::{FileId, Opened, Opening, file_id};
#[cfg(feature = "serve")]
pub use serve::{
    ExportConfig, ExportFailures, GuestConfig, Listen, Observers, Say, ServeConfig, Server,
    ServerConfig, Servers, StopReport, Threads, VhostSocket,
};
pub use serving::{check_serving, default_serving, needs_workers};
pub use space::{CHUNK_SECTORS, DriveSpace, Space, default_layout};

/// One thread's way into a volume, on an I/O thread that the program turns itself: what
/// [`IoContext::channel`] gives.
pub type ThreadChannel = millrace_block::Channel<Native>;
/// Several disks as one.
pub type Volume = millrace_block::Volume<Native>;

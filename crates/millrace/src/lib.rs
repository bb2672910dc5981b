//! millrace as a library: volumes of drives in a program, with a queue pair for each thread.
//!
//! The library opens drives, creates volumes from them and gives programs access. It prints
//! nothing, handles no signal and starts no thread unasked. Everything here runs on [`Native`]; the
//! block layer itself is [`block`], generic over the machine that it runs on ([`machine`]).
//!
//! | to | use | example |
//! |---|---|---|
//! | read and write blocks at byte offsets, one by one | [`BlockDevice`] | `stripe.rs` |
//! | read and write at any byte, as with a file | [`DeviceCursor`] | |
//! | keep many I/Os in flight from one thread, without copies | [`Channel`] | `file_volume.rs` |
//! | await I/O on any runtime | [`AsyncDevice`] | `async_tokio.rs` |
//! | serve NBD and virtual machines (feature `serve`) | [`Server`] | |
//! | serve with a protocol of one's own | [`BlockDevice`] or [`Channel`] | `own_export.rs` |
//! | write a driver | [`driver`] | `own_driver.rs` |
//! | write a scheduler | [`scheduler`] | `own_scheduler.rs` |
//! | run one's own code in virtual time | millrace-simulator, [`machine`] | `simulate.rs` there |
//!
//! Drives are written as specs, such as `ram:size=1g` or `file:path=/x/d0,size=1g`; [`Spec`] has a
//! table of all drivers and keys. The library reads no configuration file: a program fills in
//! structs such as [`VolumeConfig`]. The examples are in `crates/millrace/examples`.

//! # Channels
//!
//! A program opens a [`Channel`] for each submitting thread, submits bios with a number of its own,
//! and polls completions, as with io_uring. File drives work through the ring of the thread that
//! uses them: a [`Channel`] creates the ring when it needs it. A program that has sockets or timers
//! on the same ring, or runs many channels in one loop, creates the ring itself: [`IoContext`].
//!
//! ```
//! use millrace::{Bio, Buffer, Channel, ChannelConfig, Layout, VolumeOptions, build_volume};
//!
//! let drives = ["null:size=1g".parse()?, "null:size=1g".parse()?];
//! let layout = Layout::Stripe { chunk_sectors: 128 };
//! let (volume, _notes) = build_volume("demo", layout, &drives, &VolumeOptions::default())?;
//! let mut channel = Channel::open(&volume, ChannelConfig::default())?;
//! for number in 0..8 {
//!     channel.submit(Bio::read(number * 8, Buffer::new(4096)).with_user_data(number))?;
//! }
//! let done = channel.wait(8, |completion| assert!(completion.status.is_ok()));
//! assert_eq!(done, 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads for drives
//!
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
//!     channel.submit(Bio::write(number * 8, Buffer::new(4096)))?;
//! }
//! let done = channel.wait(64, |completion| assert!(completion.status.is_ok()));
//! assert_eq!(done, 64);
//! # drop(workers);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

//! # Panics, ends of threads, and forks
//!
//! A panic in a closure that a program passed to a channel leaves the channel intact: the bio that
//! the closure received counts as returned, and the others are returned by the next call. For a
//! panic in a driver see [`driver::Driver`](driver::Driver#panics).
//!
//! A channel may be stored in a `thread_local!`: it ends its I/O when its thread ends. A dropped
//! channel or device waits for its I/O in flight, as its documentation says.
//!
//! A program may start other programs at any time. After a plain `fork`, the child must not use
//! objects that this library created in the parent, and should call `exec` or `_exit`. If the child
//! drops channels of the forking thread nevertheless, the parent is not harmed: the channels' rings
//! are detached, and I/O on files fails in the child.

//! # Feature flags
//!
//! No feature is on by default.
//!
//! - `serve`: adds `Server`, which serves volumes over NBD, and to virtual machines by
//!   vhost-user-blk.
//! - `tls`: adds TLS, for servers and for drives that are exports of an NBD server. Building it
//!   needs a C compiler.
//!
#![cfg_attr(feature = "serve", doc = "[`Server`]: Server")]
#![cfg_attr(not(feature = "serve"), doc = "[`Server`]: #feature-flags")]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// The example of README.md runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod assemble;
mod async_device;
mod block_device;
mod cache;
mod channel;
mod config;
mod created;
mod device_cursor;
mod groups;
mod io_error;
mod opening;
#[cfg(feature = "serve")]
mod serve;
mod serving;
mod space;
mod stripe;

pub use assemble::places::Places;
pub use assemble::{DriveOptions, SetupError, drive_device, volume_device};
pub use async_device::{AsyncDevice, Pending};
pub use block_device::BlockDevice;
pub use cache::{Cached, cache_over};
pub use channel::Channel;
pub use config::{ConfigPart, DriveConfig, OpenConfig, StartError, VolumeConfig};
pub use created::Created;
pub use device_cursor::DeviceCursor;
pub use groups::{DEFAULT_GROUP, GroupConfig, open_groups};
pub use io_error::IoError;
pub use millrace_block::baseline::Stack;
pub use millrace_block::{
    AfterCompletion, Bio, Buffer, CHUNK_SECTORS_MAX, ChannelConfig, Completion, Controller,
    ControllerConfig, CostModel, Disk, DiskConfig, Error, ErrorKind, GroupId, GroupLimits, Groups,
    LatencyTarget, Layout, Op, OpCost, OpFlags, OpRates, Priority, QueueLimits, Reject, Rejected,
    SchedulerKind, Sector, SectorCount, Serving, ServingConfig, Sharing, Spread, Stamp, Status,
    Tracer,
};
pub use millrace_cache::{
    AtRisk, Cache, CacheConfig, CacheMode, CacheStats, DriveAtRisk, Registered,
};
pub use millrace_drives::{
    Cancel, Chance, DryRun, Effect, FaultControl, FaultRule, Spec, SpecError, Words,
    fault_controls, nearest, open_on, unknown_word,
};
pub use millrace_machine::{CpuId, Machine, Native, NodeId, Topology};
pub use millrace_reactor::Backend;
pub use millrace_runtime::{DriveWorkers, IoConfig, IoContext, Pinning, WorkerCpus, worker_cpus};
pub use opening::{DryOpened, Opened, Opening};
#[cfg(feature = "serve")]
pub use serve::{
    AllowedPeers, BeforeServing, ClientReport, ClosingFile, ConfigDifference, ExportConfig,
    ExportDirectory, ExportErrors, ExportFailures, ExportRequest, ExportRequests, FileChanges,
    FileTask, GuestConfig, Identity, Listen, ListenConfig, ListenTls, ListenerConfig, ListenerTls,
    NbdObserver, Observers, OnDemand, PeerNames, ReloadError, ReloadOptions, ReloadRefusal,
    Reloaded, RequestedExport, Say, SchedulerChange, ServeConfig, ServedGroups, Server,
    ServerConfig, ServerFiles, ServerStats, Servers, SocketAccess, StopReport, Threads, TlsConfig,
    VhostObserver, VhostSocket, VhostStats,
};
pub use serving::{check_serving, default_serving, needs_workers};
pub use space::{CHUNK_SECTORS, VolumeSpace, default_layout};
pub use stripe::{STRIPE_THREADS, VolumeOptions, build_volume};

/// Block layer, generic over the machine that it runs on.
pub use millrace_block as block;
/// The machine that code runs on, as a trait, and its native implementation.
pub use millrace_machine as machine;
/// I/O ring of a thread, which a program may use for its sockets and timers; see
/// [`IoContext::reactor`].
pub use millrace_reactor as reactor;

/// Types for a driver that a program implements.
///
/// A driver may work on top of another one, as a filter: it owns the lower driver, passes its
/// requests on in `queue_rq`, and reports the lower driver's completions as its own. The driver
/// `fault` of the crate millrace-drives is an example.
pub mod driver {
    pub use millrace_block::{
        CompletionBatch, Dispatch, Driver, DriverQueue, Expired, HwQueues, QueueKind, Request, Tag,
        TagScope,
    };
    pub use millrace_drives::{copy_from_request, copy_to_request};
}

/// Types for a scheduler that a program implements.
pub mod scheduler {
    pub use millrace_block::{
        BioChain, ChainBatch, CompletedChain, Deadline, DeadlineConfig, Fair, GroupId, Latency,
        Leftover, Scheduler, SchedulerPick,
    };
}

/// Queue pair through which a single thread does I/O to a volume. [`IoContext::channel`] creates
/// it, for I/O threads that the program runs itself.
pub type ThreadChannel = millrace_block::Channel<Native>;
/// Volume of one or more drives, on the native machine.
pub type Volume = millrace_block::Volume<Native>;

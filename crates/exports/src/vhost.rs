//! vhost-user-blk server: exports volumes to virtual machines, optionally with an I/O thread for
//! each queue.
//!
//! [`VhostServer::start`] binds the sockets, starts the I/O threads and control threads of all
//! exports, and returns when they serve. An I/O thread has a ring, a channel to the export's volume
//! and a hardware queue of its drives. The queues of a guest are distributed evenly over the
//! threads. [`VhostServer::stop`] answers requests in flight, flushes the volumes and joins the
//! threads.
//!
//! Path of a request: io_thread.rs (loop) -> queue.rs (slots) -> ring.rs (virtqueue) -> blk.rs
//! (request) -> channel of the block layer -> queue.rs (answer). The drives access guest memory
//! directly. The crate `vhost` parses the protocol for device.rs, on a thread that does no I/O
//! (control.rs). Paper: \[MIOT\]: a dedicated queue and I/O thread for each vCPU.

mod device;
mod frontends;
mod io_thread;
mod local;
mod log;
pub mod memory;
#[cfg(test)]
mod models;
mod queue;
pub mod ring;
mod stats;
mod thread_count;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Error, ErrorKind, GroupId, SizeWatch, Volume};
use millrace_machine::{
    CpuId, Deadline, Lock, Native, NativeThread, Thread, debug_fields, nanoseconds,
};
use millrace_reactor::{Backend, Config};

use self::device::Device;
use self::device::control::{ControlEndpoint, FrontendLink};
use self::io_thread::{ExportContext, IoThread, ThreadConfig, ThreadState};
use self::log::ExportLog;
use crate::SocketAccess;
use crate::io_threads::{FailedFlag, IoThreads, ThreadPlace, cpu_of};
use crate::stop::{Progress, REPORT_NS};
use crate::virtio::ID_BYTES;
use crate::{ClientGroup, ExportErrors, GroupMembership, UnixSocket, descriptors};

pub use self::io_thread::{pace, polling};
pub use self::local::{LocalDevice, LocalRing};
pub use self::log::Say;
pub use self::queue::blk;
pub use self::stats::{QueueStats, ThreadStats, VhostStats};
pub use self::thread_count::{QUEUES_MAX, Threads};

const THREAD_NAME_BYTES: usize = 15;

/// Returns a thread's name as shown by `ps -T` and `top -H`: `role` and the end of the export's
/// name, since names of exports mostly differ there.
fn thread_name(role: &str, export: &str) -> String {
    // A thread name cannot contain a zero byte.
    let export = export.replace('\0', "");
    let cut = export.len().saturating_sub(THREAD_NAME_BYTES - role.len());
    let start = (cut..=export.len()).find(|start| export.is_char_boundary(*start));
    format!("{role}{}", &export[start.unwrap_or(export.len())..])
}

/// Default of the longest poll before a sleep: 200 us, like KVM's `halt_poll_ns`. On hosts that are
/// virtual machines themselves, waking a thread can take that long.
pub const POLL_MAX: Duration = Duration::from_micros(200);
/// Default of the longest wait for more requests: 10 us.
pub const WAIT_MAX: Duration = Duration::from_micros(10);

/// Time after which a stop sends hanging I/O threads a signal, and interval of further signals.
const SIGNAL_TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(20)];

/// Number of file descriptors of a queue: for kicks, interrupts and errors.
const QUEUE_FDS: u64 = 3;
/// Number of file descriptors of a frontend: three for its connection, one for the channel back,
/// and those in one message.
const FRONTEND_FDS: u64 = 4 + 8;

/// Socket of an export, and the side that listens on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VhostSocket {
    /// The server listens, and allowed frontends connect.
    Listen(PathBuf, SocketAccess),
    /// The server connects to the frontend, and reconnects when the connection is lost.
    Connect(PathBuf),
}

/// Settings of an export to virtual machines.
#[derive(Debug, Clone)]
pub struct VhostExport {
    /// Name of the export for messages.
    pub name: String,
    /// Exported volume.
    pub volume: Arc<Volume<Native>>,
    /// If true, writes to the export are refused.
    pub read_only: bool,
    /// Socket for the frontend.
    pub socket: VhostSocket,
    /// Maximum number of queues of a guest, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Rule by which the queues are distributed over I/O threads.
    pub threads: Threads,
    /// CPUs that threads are pinned to, round-robin. Empty if threads are not pinned.
    pub cpus: Vec<CpuId>,
    /// Number of the export's first I/O thread, in a common count of all threads that use drives.
    pub first_thread: u16,
    /// Serial number shown to the guest, at most 20 bytes.
    pub serial: String,
    /// Longest poll before a sleep; zero disables polling.
    pub poll_max: Duration,
    /// Longest wait for more requests before a submission; zero disables waiting.
    pub wait_max: Duration,
    /// If true, EVENT_IDX is offered: suppression of notifications by index instead of by flags.
    pub event_idx: bool,
    /// Tenant to which the export's I/O is accounted.
    pub tenant: u16,
    /// I/O group of the virtual machine.
    pub group: ClientGroup,
}

impl VhostExport {
    /// Returns the number of I/O threads for this export on this machine.
    #[must_use]
    pub fn thread_count(&self) -> u16 {
        self.threads.count(self.queues, &self.cpus)
    }
}

/// Settings of a vhost-user server.
#[derive(Clone)]
pub struct VhostConfig {
    /// Exports of the server.
    pub exports: Vec<VhostExport>,
    /// I/O interface to the kernel: io_uring or epoll.
    pub backend: Backend,
    /// Function that receives messages for the operator.
    pub say: Say,
}

debug_fields!(VhostConfig, exports, backend);

/// Parts of an export that its control thread and observers use. Observers may outlive the export.
pub(crate) struct SharedExport {
    name: String,
    common: Arc<ExportContext>,
    thread_states: Vec<Arc<ThreadState>>,
    link: FrontendLink,
    tenant: u16,
    group: GroupId,
}

struct RunningExport {
    shared: Arc<SharedExport>,
    threads: IoThreads<Vec<String>>,
    control: Option<NativeThread>,
    /// Informs guests of size changes of the volume.
    _size: SizeWatch<Native>,
    /// Keeps the group assigned to the export's guests.
    _seat: GroupMembership,
}

/// A running vhost-user server. Dropping it without [`VhostServer::stop`] stops it without waiting
/// for requests.
pub struct VhostServer {
    exports: Vec<RunningExport>,
    failed: FailedFlag,
    notes: Vec<String>,
    backend: Backend,
    say: Say,
}

debug_fields!(VhostServer, notes, backend);

impl VhostServer {
    /// Binds all sockets, starts all threads, and returns when they serve.
    ///
    /// # Errors
    /// `InvalidSetting` for invalid settings, `Busy` if another server uses an address,
    /// `NotFound`, `PermissionDenied` or `System` if the kernel refuses a socket, a ring or memory.
    /// Nothing is left running.
    pub fn start(config: VhostConfig) -> Result<VhostServer, Error> {
        let VhostConfig { exports, backend, say } = config;
        let (failed, running) = (FailedFlag::default(), Vec::new());
        let mut server = VhostServer { exports: running, failed, notes: Vec::new(), backend, say };
        server.add_all(&exports)?;
        server.notes.dedup();
        foreseen_shortage(&exports).iter().for_each(|text| (server.say)(text));
        Ok(server)
    }

    /// Starts another export while the others serve, and returns when it serves.
    ///
    /// # Errors
    /// The errors of [`VhostServer::start`]. Nothing of the export is left running.
    pub fn add(&mut self, export: &VhostExport) -> Result<(), Error> {
        self.add_all(std::slice::from_ref(export))
    }

    fn add_all(&mut self, exports: &[VhostExport]) -> Result<(), Error> {
        exports.iter().try_for_each(check)?;
        let endpoints = exports.iter().map(|export| bind(&export.socket));
        let endpoints = endpoints.collect::<Result<Vec<_>, Error>>()?;
        let before = self.exports.len();
        let mut started = exports.iter().try_for_each(|export| self.start_threads(export));
        // The first frontend is answered only after the threads of all exports have started.
        let new = self.exports[before..].iter_mut().zip(exports.iter().zip(endpoints));
        for (running, (export, endpoint)) in new {
            started = started.and_then(|()| running.start_control(export, endpoint));
        }
        if started.is_err() {
            let _ = end_exports(self.exports.drain(before..).collect(), Duration::ZERO);
        }
        started
    }

    /// Stops the named exports as [`VhostServer::stop`] does, while the others serve. Returns texts
    /// about everything that failed.
    #[must_use]
    pub fn remove(&mut self, names: &[&str], drain_timeout: Duration) -> Vec<String> {
        let is_removed =
            |running: &mut RunningExport| names.contains(&running.shared.name.as_str());
        end_exports(self.exports.extract_if(.., is_removed).collect(), drain_timeout)
    }

    fn start_threads(&mut self, export: &VhostExport) -> Result<(), Error> {
        let seat = export.group.enter();
        let shared = SharedExport::new(export, seat.group(), (self.backend, &self.say))?;
        let told = Arc::clone(&shared);
        let tell = move |_| _ = told.link.notify_config_change();
        let size = export.volume.watch_size(tell);
        let places = shared.thread_states.iter().zip(0..).map(|(state, index)| {
            let (common, state) = (Arc::clone(&shared.common), Arc::clone(state));
            let number = export.first_thread + index;
            let name = thread_name(&format!("vm{index}-"), &export.name);
            let place = ThreadPlace { name, cpu: cpu_of(&export.cpus, index.into()) };
            (place, move || IoThread::new(&common, &state, number))
        });
        let (threads, notes) = IoThreads::start(&self.failed, places);
        let running = RunningExport { shared, threads, control: None, _size: size, _seat: seat };
        self.exports.push(running);
        self.notes.extend(notes?);
        Ok(())
    }

    /// Returns notes for the operator, for example that io_uring was refused.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns true if an I/O thread panicked or lost its ring, so that its queues are stuck. The
    /// call is cheap.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.is_set()
    }

    /// Returns a handle to the counters for another thread. The handle may outlive the server.
    #[must_use]
    pub fn observer(&self) -> VhostObserver {
        VhostObserver(self.exports.iter().map(|running| Arc::clone(&running.shared)).collect())
    }

    /// Stops the server: takes no more requests from guests, answers those in flight for at most
    /// `drain_timeout`, flushes every volume, ends the threads and removes the socket files.
    /// Returns texts about everything that failed.
    #[must_use]
    pub fn stop(mut self, drain_timeout: Duration) -> Vec<String> {
        self.halt(drain_timeout)
    }

    /// Stops the server like [`VhostServer::stop`], without consuming it. No export is left then.
    #[must_use]
    pub fn halt(&mut self, drain_timeout: Duration) -> Vec<String> {
        end_exports(std::mem::take(&mut self.exports), drain_timeout)
    }
}

fn end_exports(exports: Vec<RunningExport>, drain_timeout: Duration) -> Vec<String> {
    let mut limit = Deadline::after(drain_timeout);
    for export in &exports {
        export.shared.common.stop.give(drain_timeout);
        export.shared.thread_states.iter().for_each(|state| state.orders.ring());
    }
    let mut failures = Vec::new();
    for mut export in exports {
        let name = &export.shared.name;
        if !export.has_ended(&mut limit) {
            let text = "an I/O thread hangs in a drive or in memory shared by a frontend, and is left \
                        behind";
            failures.push(format!("export {name}: {text}"));
        } else if let Err(text) = export.threads.join().in_words() {
            failures.push(format!("export {name}: {text}"));
        }
        // The frontend's link is shut down after the threads, so that the guest sees the last
        // completions.
        export.shared.link.shut_down();
        if !export.control.into_iter().fold(true, |whole, thread| thread.join() & whole) {
            failures.push(format!("export {name}: its control thread panicked"));
        }
        failures.extend(export.threads.reports().flatten());
    }
    failures
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        if !self.exports.is_empty() {
            let _ = self.halt(Duration::ZERO);
        }
    }
}

/// Handle to the counters of a server, which may outlive it.
#[derive(Clone)]
pub struct VhostObserver(Vec<Arc<SharedExport>>);

debug_fields!(VhostObserver);

impl VhostObserver {
    /// Returns the counters of each thread and of its queues, by export name.
    #[must_use]
    pub fn stats(&self) -> Vec<(String, Vec<VhostStats>)> {
        let threads = |seen: &SharedExport| {
            seen.thread_states.iter().map(|state| state.published.read()).collect()
        };
        self.0.iter().map(|seen| (seen.name.clone(), threads(seen))).collect()
    }

    /// Returns the I/O errors of every export so far.
    #[must_use]
    pub fn errors(&self) -> Vec<ExportErrors> {
        self.0.iter().map(|seen| seen.common.faults.report(&seen.name)).collect()
    }
}

impl SharedExport {
    fn new(
        export: &VhostExport,
        group: GroupId,
        (backend, say): (Backend, &Say),
    ) -> Result<Arc<SharedExport>, Error> {
        let config = ThreadConfig {
            reactor: Config { backend, ..Config::default() },
            poll_max_ns: nanoseconds(export.poll_max),
            wait_max_ns: nanoseconds(export.wait_max),
        };
        let log = ExportLog::new(&export.name, say);
        let link = FrontendLink::new(&log)
            .map_err(|error| Error::system(format!("eventfd: {error}"), error.raw_os_error()))?;
        let lock = (export.threads == Threads::Shared).then(|| Lock::new("vhost queues", ()));
        Ok(Arc::new(SharedExport {
            name: export.name.clone(),
            common: Arc::new(ExportContext::new(Arc::clone(&export.volume), config, log, lock)),
            thread_states: (0..export.thread_count()).map(|_| Arc::default()).collect(),
            link,
            tenant: export.tenant,
            group,
        }))
    }
}

/// Returns a warning for the operator if guests may need more descriptors than the limit allows.
fn foreseen_shortage(exports: &[VhostExport]) -> Option<String> {
    let queues: u64 = exports.iter().map(|export| u64::from(export.queues)).sum();
    let count = exports.len() as u64;
    let what = format!("{queues} queues of {count} exports to virtual machines");
    descriptors::foreseen_shortage(&what, QUEUE_FDS * queues + FRONTEND_FDS * count)
}

fn check(export: &VhostExport) -> Result<(), Error> {
    let name = &export.name;
    let wrong = |text: String| Err(Error::new(ErrorKind::InvalidSetting, text));
    if !(1..=QUEUES_MAX).contains(&export.queues) {
        return wrong(format!("export {name}: {} queues; 1 to {QUEUES_MAX}", export.queues));
    }
    if export.serial.len() > ID_BYTES {
        let text = format!("export {name}: a serial number has at most {ID_BYTES} bytes");
        return wrong(text);
    }
    Ok(())
}

fn bind(socket: &VhostSocket) -> Result<ControlEndpoint, Error> {
    Ok(match socket {
        VhostSocket::Listen(path, access) => {
            ControlEndpoint::Listen(UnixSocket::bind_with(path, access)?, access.allow.clone())
        }
        VhostSocket::Connect(path) => ControlEndpoint::Connect(path.clone()),
    })
}

impl RunningExport {
    /// Returns true once all I/O threads have ended. Waits up to [`REPORT_NS`] after the deadline,
    /// and sends signals to threads that hang.
    fn has_ended(&self, limit: &mut Deadline<Native>) -> bool {
        let mut progress = Progress::of(&self.shared.common.volume);
        let mut wait = SIGNAL_TIMES[0];
        while !self.threads.wait(wait) {
            if progress.is_over(limit.left_with_ns(REPORT_NS), REPORT_NS) {
                return false;
            }
            self.shared.thread_states.iter().for_each(|state| state.signal.send());
            wait = SIGNAL_TIMES[1];
        }
        true
    }

    fn start_control(
        &mut self,
        export: &VhostExport,
        endpoint: ControlEndpoint,
    ) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let limits = *export.volume.limits();
        let config = blk::Config {
            capacity: export.volume.capacity(),
            limits,
            queues: export.queues,
            read_only: export.read_only || limits.features.read_only,
            write_back: true,
            event_idx: export.event_idx,
        };
        let mut id = [0; ID_BYTES];
        id[..export.serial.len()].copy_from_slice(export.serial.as_bytes());
        let body = move || {
            let make = || Device::new(Arc::clone(&shared), config, id);
            device::control::run(&endpoint, &shared.link, make);
        };
        let name = thread_name("vhost-", &export.name);
        let control = Native::try_spawn(&name, None, body).map_err(|error| {
            Error::new(ErrorKind::System, format!("export {}: {error}", export.name))
        })?;
        self.control = Some(control);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! `nbd`: a drive that is an export of an NBD server.
//!
//! Each I/O thread has a hardware queue with connections of its own if the server says that a flush
//! covers all connections (`multi-conn`); otherwise there is one queue with one connection. Queues
//! without a connection send their requests through queues that have one (`siblings.rs`). After a
//! connection is lost, the drive reconnects and sends the requests in flight again. A write that is
//! sent twice overwrites nothing newer, because the block layer never has two overlapping writes in
//! flight whose order matters. A server that terminates may lose acknowledged writes that no flush
//! covers, as a disk that loses power does. Kernel counterpart: drivers/block/nbd.c.

mod backoff;
mod dial;
mod drive_state;
mod flight;
mod inbound;
mod link;
mod outbound;
mod queue;
mod redial;
mod ring;
mod settings;
mod siblings;
mod status_line;
mod trouble;
mod wire;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_block::{
    Driver, DriverQueue, Error, ErrorKind, Extent, Features, HwQueues, QueueLimits, Sector,
};
use millrace_machine::{Native, Topology, debug_fields, lock_unpoisoned};
use millrace_nbd::TransmissionFlags;
use millrace_nbd::client::{ClientSession, NbdUri};
pub use millrace_tls::{ClientFiles, Identity as TlsIdentity};

use crate::common::cancel::Cancel;
use crate::common::extents::all_data;
use crate::common::owner_queues;
use crate::common::pieces::PIECES_MAX;
use crate::null::NullDriver;
use crate::open::{DriveSettings, OpenOptions, Opened};
use crate::spec::SpecError;
use dial::{DialPurpose, NegotiatedConnection, ServerTarget};
pub(crate) use drive_state::NbdState;
use drive_state::{DriveReports, FlushDurability};
use link::{LinkPlace, NbdLink, NextConnection};
use queue::{NbdQueue, QueueSize};
use redial::{ATTEMPT, ReconnectThread};
pub(crate) use settings::ROW;
use settings::{check, connections_of, notes};
use siblings::SiblingQueues;
use status_line::in_sectors;

const MAX_SECTORS: u32 = 2048;
const MERGE_SECTORS: u32 = 512;
/// Maximum length of a discard or write-zeroes, in sectors. A server that executes these requests
/// by writing must finish within the request timeout.
const MAX_RANGE_SECTORS: u32 = 64 << 11;
const CONNECTIONS_MAX: u64 = 64;
/// Time limit for the connections that are made while a drive is opened.
const START: Duration = Duration::from_secs(10);

/// Settings of an NBD drive.
#[derive(Debug, Clone)]
pub struct NbdConfig {
    /// Address of the server, and name of the export.
    pub uri: NbdUri,
    /// The URI as the user wrote it, for messages.
    pub text: String,
    /// Total number of connections. `None` means one per I/O thread if the server says that a flush
    /// covers the writes on all connections, and otherwise a single one.
    pub connections: Option<u16>,
    /// Number of tags of each queue.
    pub depth: u32,
    /// Time that I/O waits for a lost server before it fails.
    pub reconnect: Duration,
    /// True if every write must be durable when it completes.
    pub write_through: bool,
    /// Policy for unflushed writes after a reconnection, since the server may have lost them.
    pub on_server_restart: OnServerRestart,
    /// True if the drive must reject writes.
    pub read_only: bool,
    /// TLS settings (needs the feature `tls`), or `None` for plaintext.
    pub tls: Option<NbdTls>,
    /// Number of I/O threads, each with a queue of its own.
    pub io_threads: u16,
    /// Flag that ends waits for the server early while the drive is opened.
    pub cancel: Cancel,
}

impl NbdConfig {
    /// Returns the default settings for an export. `text` is its URI as the user wrote it.
    #[must_use]
    pub fn new(uri: NbdUri, text: String) -> NbdConfig {
        NbdConfig {
            uri,
            text,
            connections: None,
            depth: 128,
            reconnect: Duration::from_secs(60),
            write_through: false,
            on_server_restart: OnServerRestart::GoOn,
            read_only: false,
            tls: None,
            io_threads: 1,
            cancel: Cancel::default(),
        }
    }

    fn is_read_only(&self, session: &ClientSession) -> bool {
        self.read_only || session.flags.contains(TransmissionFlags::READ_ONLY)
    }

    fn error(&self, kind: ErrorKind, text: &str) -> Error {
        Error::new(kind, format!("{}: {text}", self.text))
    }
}

/// Policy for writes that were acknowledged before a reconnection and not flushed. A restarted
/// server may have lost them; the drive cannot tell a restart from an interrupted connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnServerRestart {
    /// Continues as if the server had lost no write.
    #[default]
    GoOn,
    /// Fails the next flush or FUA write, once.
    FlushError,
}

/// TLS files, and the name that the server's certificate must have.
#[derive(Debug, Clone)]
pub struct NbdTls {
    /// Certificate files.
    pub files: ClientFiles,
    /// Expected name in the server's certificate. `None` stands for the host of the URI, or
    /// `localhost` for a Unix socket.
    pub hostname: Option<String>,
}

/// A drive on an NBD server.
pub struct NbdDriver {
    shared: Arc<NbdState>,
    connections: u16,
    /// Identity of the export: two drives with equal pairs use the same export. The pair consists
    /// of a hash of the server's address, and a hash of the server's address and the export's name.
    pub identity: (u64, u64),
    /// Remarks for the user, such as the number of connections.
    pub notes: Vec<String>,
}

debug_fields!(NbdDriver, identity, notes);

impl NbdDriver {
    /// Connects to the server.
    ///
    /// # Errors
    /// Returns `NotFound`, `PermissionDenied` or `System` if the server cannot be reached,
    /// `NotSupported` if it refuses, `InvalidSetting` if the settings do not fit the export. The
    /// text names the URI.
    pub fn open(config: NbdConfig) -> Result<NbdDriver, Error> {
        let target = ServerTarget::new(config)?;
        let connected = target.dial(DialPurpose::Transmit, START)?;
        let (session, identity) = (connected.session, connected.identity);
        check(&target.config, &session)?;
        let connections = connections_of(&target.config, &session)?;
        let notes = notes(&target.config, &session);
        let shared = Arc::new(NbdState {
            target,
            session,
            size_bytes: session.size_bytes.into(),
            late: false.into(),
            epoch: 0.into(),
            generation: 0.into(),
            backoff: Mutex::default(),
            searching: 0.into(),
            dead: false.into(),
            siblings: SiblingQueues::default(),
            durability: FlushDurability::default(),
            reports: DriveReports::default(),
            first: Mutex::default(),
            status_line: Mutex::default(),
        });
        shared.note_certificate(&connected);
        *lock_unpoisoned(&shared.first) = Some(connected);
        Ok(NbdDriver { shared, connections, identity, notes })
    }

    fn queues(&self) -> u16 {
        self.connections.min(self.config().io_threads.max(1))
    }

    fn config(&self) -> &NbdConfig {
        &self.shared.target.config
    }

    /// Makes a connection for a queue. Once an attempt has failed, further calls make no attempt
    /// and return no connection, so that opening the drive waits for the server only once.
    fn connect(&self) -> Result<NextConnection, Error> {
        let shared = &self.shared;
        // The connection made when the drive was opened has generation 0.
        let mut next = NextConnection::default();
        next.connected = lock_unpoisoned(&shared.first).take();
        if next.connected.is_none() {
            next.generation = shared.generation();
            if lock_unpoisoned(&shared.reports.trouble).why.is_some() {
                return Ok(next);
            }
            match shared.target.dial(DialPurpose::Transmit, ATTEMPT) {
                Ok(connected) => next.connected = Some(connected),
                Err(error) if self.connections > 1 => shared.note_trouble(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        let kept = next.connected.iter().try_for_each(|one| shared.is_kept_by(&one.session));
        kept.map_err(|text| Error::new(ErrorKind::NotSupported, text))?;
        Ok(next)
    }

    /// Returns the name that messages use for a queue's connection, such as "connection 2 of 4".
    /// Returns `None` if the drive has only one connection.
    fn name_of(&self, queue: u16, link: usize) -> Option<String> {
        let (queues, all) = (self.queues(), self.connections);
        let before = usize::from(queue * (all / queues) + queue.min(all % queues));
        (all > 1).then(|| format!("connection {} of {all}", before + link + 1))
    }
}

impl DriveSettings for NbdConfig {
    fn open(self: Box<Self>, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError> {
        let config = NbdConfig { io_threads, cancel: options.cancel.clone(), ..*self };
        if options.dry_run.is_some() {
            return Ok(look(&config)?);
        }
        let nbd = NbdDriver::open(config)?;
        let (notes, identity) = (nbd.notes.clone(), Some(nbd.identity));
        Ok(Opened { notes, identity, ..Opened::plain(nbd) })
    }
}

fn look(config: &NbdConfig) -> Result<Opened, Error> {
    let NegotiatedConnection { session, identity, .. } = ask(config)?;
    check(config, &session)?;
    connections_of(config, &session)?;
    let (block, read_only) = (session.block_min.max(512), config.is_read_only(&session));
    let driver = NullDriver { read_only, ..NullDriver::stand_in(session.size_bytes, block) };
    let notes = notes(config, &session);
    Ok(Opened { notes, identity: Some(identity), ..Opened::plain(driver) })
}

fn ask(config: &NbdConfig) -> Result<NegotiatedConnection, Error> {
    let target = ServerTarget::new(config.clone())?;
    // If the server does not support NBD_OPT_INFO, a connection for I/O is made to learn the
    // export's properties.
    let asked = target.dial(DialPurpose::Ask, START);
    asked.or_else(|error| match error.kind() {
        ErrorKind::NotSupported => target.dial(DialPurpose::Transmit, START),
        _ => Err(error),
    })
}

impl Driver<Native> for NbdDriver {
    fn capacity(&self) -> Sector {
        self.shared.session.size_bytes >> 9
    }

    fn size_bytes(&self) -> u64 {
        // Relaxed: the value is only shown to people.
        self.shared.size_bytes.load(Ordering::Relaxed)
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        if self.shared.is_dead() {
            let text = "its export has changed, and the drive fails all I/O until it is opened \
                        again, for example by a restart";
            return Err(self.config().error(ErrorKind::NotSupported, text));
        }
        let now_bytes = ask(self.config())?.session.size_bytes;
        // Relaxed: only this function writes the size, and the block layer calls it from one thread
        // at a time.
        let before = self.shared.size_bytes.load(Ordering::Relaxed);
        if now_bytes > before {
            // Relaxed: incrementing `epoch` below publishes the new size.
            self.shared.size_bytes.store(now_bytes, Ordering::Relaxed);
            // Release publishes the new size to connections, which load `epoch` with Acquire.
            self.shared.epoch.fetch_add(1, Ordering::Release);
        }
        Ok(now_bytes >> 9)
    }

    fn limits(&self) -> QueueLimits {
        let (shared, logical) = (&self.shared, self.shared.block_min());
        let physical = shared.session.block_preferred.clamp(logical, logical.max(65_536));
        let range = |flag| if shared.has(flag) { MAX_RANGE_SECTORS } else { 0 };
        let cached = shared.has(TransmissionFlags::FLUSH) && !self.config().write_through;
        QueueLimits {
            logical_block_size: logical,
            physical_block_size: physical,
            io_min: physical,
            max_sectors: shared.payload_max() >> 9,
            merge_sectors: MERGE_SECTORS,
            max_segments: PIECES_MAX as u16,
            max_discard_sectors: range(TransmissionFlags::TRIM),
            discard_granularity: physical,
            max_write_zeroes_sectors: range(TransmissionFlags::WRITE_ZEROES),
            features: Features {
                volatile_cache: cached,
                fua: cached && shared.has(TransmissionFlags::FUA),
                read_only: shared.is_read_only(),
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _topology: &Topology) -> HwQueues {
        owner_queues::hw_queues(self.queues(), self.config().depth)
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let current = owner_queues::opener(&self.config().text, index)?;
        let queues = self.queues();
        let mine = self.connections / queues + u16::from(index < self.connections % queues);
        let guests_max = if queues > 1 { depth } else { 0 };
        let mut links = Vec::new();
        for number in 0..usize::from(mine.max(1)) {
            let next = self.connect()?;
            let redial = ReconnectThread::new(Arc::clone(&current.wake));
            let name = self.name_of(index, number);
            let place = LinkPlace { queue: index.into(), number, name };
            links.push(NbdLink::new(place, next, redial, depth + guests_max));
        }
        let (depth, guests_max) = (depth as usize, guests_max as usize);
        let size = QueueSize { number: index.into(), depth, guests_max };
        Ok(Box::new(NbdQueue::new(&self.shared, size, current, links)))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        // If the server has no `multi-conn`, a second connection might not see writes of the first.
        let shared = &self.shared;
        let is_blind = !shared.has(TransmissionFlags::MULTI_CONN) || shared.siblings.is_sole();
        if !shared.is_read_only() && is_blind {
            return all_data(nr_sectors);
        }
        let mut line = lock_unpoisoned(&shared.status_line);
        let told = line.ask(shared, sector << 9, nr_sectors << 9);
        told.map_or_else(|| all_data(nr_sectors), |extents| in_sectors(&extents, nr_sectors))
    }

    fn is_polled_idle(&self) -> bool {
        true
    }

    fn is_reconnecting(&self) -> bool {
        // Relaxed: an old value does no harm, because both callers ask again: status reports, and
        // the NBD server's search for overdue requests.
        self.shared.searching.load(Ordering::Relaxed) > 0
    }

    fn trouble(&self) -> Option<String> {
        let connections = self.shared.siblings.connections();
        lock_unpoisoned(&self.shared.reports.trouble).text(connections)
    }

    fn flush_trouble(&self) -> Option<String> {
        self.shared.flush_trouble()
    }

    fn prepare_stop(&self) {
        // Relaxed: only a flush that is submitted after this call must see the new value. An
        // earlier flush that sees the old value may wait for a lost server, as in normal operation.
        self.shared.durability.stopping.store(true, Ordering::Relaxed);
    }

    fn take_news(&self) -> Vec<String> {
        self.shared.take_news()
    }
}

//! `NbdState`: what all queues of an NBD drive share, and what every connection must keep.
//!
//! Owns the promise that the first connection made possible, the counts of how often the drive has
//! grown and lost a connection, what a lost server may have lost with it, and lines of news until
//! somebody takes them. Made by `nbd.rs`; used by links and by the threads that look for a server.
//!
//! Invariant: connections of one generation lead to one server. Where one is lost, the address may
//! lead to another server from then on (one that was started anew, or took over), which has not
//! what the old one was told: so none of those made before takes a request or an answer any more.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_nbd::TransmissionFlags;
use millrace_nbd::client::ClientSession;

use super::OnServerRestart;
use super::backoff::{LogLimit, ReconnectBackoff};
use super::dial::{Connected, Target};
use super::secure::CertificateWatch;
use super::siblings::{ConnectionSharing, SiblingQueues};
use super::status_line::StatusLine;
use super::trouble::{ConnectFailure, ReconnectTrouble};
use super::unflushed::UnflushedWrites;

/// Why a flush fails that the server has carried out.
const FLUSH_TROUBLE: &str = "the server was connected anew after writes that no flush covers";
/// The setting that makes it fail.
const FLUSH_ERROR: &str = "on-server-restart = \"flush-error\"";

/// Most lines of news that wait to be said.
const NEWS_MAX: usize = 64;

/// What the drive has promised to the layer, and so every later connection must keep.
#[derive(Debug)]
pub(crate) struct Promise {
    /// The URI as it was written.
    pub(crate) text: String,
    /// What the export can do, of what the drive uses.
    pub(crate) flags: TransmissionFlags,
    /// The drive takes no writes.
    pub(crate) read_only: bool,
    /// Alignment in bytes.
    pub(crate) block_min: u32,
    /// Longest read or write in bytes.
    pub(crate) payload_max: u32,
    /// Bytes that the drive has by now.
    pub(crate) size_bytes: AtomicU64,
}

impl Promise {
    /// Whether a connection may be used beside others: what is written by one of them is covered by
    /// the flushes of each.
    pub(crate) fn may_share(&self, session: &ClientSession) -> bool {
        self.read_only || session.flags.contains(TransmissionFlags::MULTI_CONN)
    }

    /// [`may_share`](Self::may_share), as the drive's connections ask.
    pub(crate) fn sharing(&self, session: &ClientSession) -> ConnectionSharing {
        match self.may_share(session) {
            true => ConnectionSharing::WithOthers,
            false => ConnectionSharing::Alone,
        }
    }

    /// Whether a connection offers all of it; else why not.
    pub(crate) fn kept_by(&self, session: &ClientSession) -> Result<(), String> {
        // Relaxed: the size only grows, and a connection that knows an earlier one is replaced.
        let has = self.size_bytes.load(Ordering::Relaxed);
        let text = &self.text;
        let end = "the drive is dead until it is opened again, as by a restart";
        if session.size_bytes < has {
            let now = session.size_bytes;
            return Err(format!("{text}: the export has {now} bytes now and had {has}; {end}"));
        }
        // A server says nothing of FUA and trim for an export that takes no writes.
        if session.flags.contains(TransmissionFlags::READ_ONLY) && !self.read_only {
            return Err(format!("{text}: the export is read-only now; {end}"));
        }
        if !session.flags.contains(self.flags) {
            let lacks = lacking(self.flags, session.flags);
            return Err(format!("{text}: the export can do less than before: no {lacks}; {end}"));
        }
        if session.block_min > self.block_min || session.block_max < self.payload_max {
            let (least, most) = (session.block_min, session.block_max);
            let (least_before, most_before) = (self.block_min, self.payload_max);
            return Err(format!(
                "{text}: the export takes blocks of {least} bytes and requests of {most} at most, \
                 before it was {least_before} and {most_before}; {end}"
            ));
        }
        Ok(())
    }
}

/// What of the one flags the others have not, in NBD's words.
fn lacking(had: TransmissionFlags, has: TransmissionFlags) -> String {
    let words = [
        (TransmissionFlags::FLUSH, "flush"),
        (TransmissionFlags::FUA, "FUA"),
        (TransmissionFlags::TRIM, "trim"),
        (TransmissionFlags::WRITE_ZEROES, "write zeroes"),
    ];
    let lacks = words.iter().filter(|(flag, _)| had.contains(*flag) && !has.contains(*flag));
    lacks.map(|(_, word)| *word).collect::<Vec<_>>().join(", no ")
}

/// Why a connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A request got no answer within its timeout.
    Silence,
    /// Anything else.
    Other,
}

/// The loss of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss<'a> {
    pub(crate) cause: Cause,
    /// In words.
    pub(crate) why: &'a str,
    /// When the connection was made; none if it is the export that is lost.
    pub(crate) since: Option<Instant>,
}

/// Wakes the thread that sleeps over this number.
#[allow(unsafe_code)]
pub(crate) fn wake_up(wake: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight bytes of a live number; a full counter wakes just as well.
    unsafe { libc::write(wake.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Writes that the server has answered and may lose, and what becomes of the flush after them.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    pub(crate) on_server_restart: OnServerRestart,
    pub(crate) unflushed: UnflushedWrites,
    /// The next flush or FUA write fails: a server was lost that had answered unflushed writes.
    pub(crate) owes_error: AtomicBool,
    /// The last flush or FUA write failed for that.
    pub(crate) has_failed: AtomicBool,
    /// The daemon stops: a flush that has nothing to flush does not wait for a server.
    pub(crate) stopping: AtomicBool,
}

/// What people are to hear of the drive.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    news: Mutex<VecDeque<String>>,
    pub(crate) trouble: Mutex<ReconnectTrouble>,
    certificate: Mutex<CertificateWatch>,
    /// Of lines that the server answers nothing.
    futility: Mutex<LogLimit>,
}

/// What all queues of a drive share.
pub(crate) struct NbdState {
    pub(crate) target: Target,
    pub(crate) promise: Promise,
    pub(crate) reconnect: Duration,
    pub(crate) write_through: bool,
    /// Some connection's time to come back is over, and none has come back since.
    pub(crate) late: AtomicBool,
    /// Counts how often the drive has grown.
    pub(crate) epoch: AtomicU32,
    /// Counts how often a connection was lost whose generation was the last.
    pub(crate) generation: AtomicU32,
    pub(crate) backoff: Mutex<ReconnectBackoff>,
    /// Queues whose requests wait for the server, within the time for that.
    pub(crate) searching: AtomicU32,
    /// The export has changed so that the drive cannot go on.
    pub(crate) dead: AtomicBool,
    pub(crate) siblings: SiblingQueues,
    pub(crate) durability: Durability,
    pub(crate) reports: Reports,
    /// The connection that opening made, for the queue that is opened first.
    pub(crate) first: Mutex<Option<Connected>>,
    pub(crate) status_line: Mutex<StatusLine>,
}

/// Locks; what a thread that panicked left behind is whole, as each change is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NbdState {
    /// One more queue waits for the server.
    #[cold]
    pub(crate) fn begin_search(&self) {
        // Relaxed here and below: it orders nothing.
        self.searching.fetch_add(1, Ordering::Relaxed);
    }

    /// One queue less does.
    #[cold]
    pub(crate) fn end_search(&self) {
        self.searching.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether requests fail until the server is back: one connection has waited for the others.
    pub(crate) fn is_late(&self) -> bool {
        // Relaxed: it orders nothing; a look too early waits once more.
        self.late.load(Ordering::Relaxed)
    }

    /// The time to come back is over; false if it was before.
    pub(crate) fn became_late(&self) -> bool {
        let is_first = !self.late.swap(true, Ordering::Relaxed);
        if is_first {
            lock(&self.backoff).requests_fail();
        }
        is_first
    }

    /// Logs that the server comes back each time and answers nothing, now and then.
    pub(crate) fn say_requests_fail(&self, text: &str) {
        if lock(&self.reports.futility).allows(Instant::now()) {
            lock(&self.backoff).requests_fail();
            self.say(text.to_owned());
        }
    }

    /// Whether the last loss and the reconnect after it are logged, with the number of connections
    /// in a row that did not last.
    pub(crate) fn logs_loss(&self) -> Option<u32> {
        let backoff = lock(&self.backoff);
        backoff.is_logged().then(|| backoff.short())
    }

    /// How long to wait before the next connection is made.
    pub(crate) fn pause(&self) -> Duration {
        lock(&self.backoff).pause(Instant::now())
    }

    /// The server has taken a connection of this generation.
    pub(crate) fn came_back(&self, connected: &Connected, generation: u32) {
        let mut trouble = lock(&self.reports.trouble);
        if generation != self.generation() {
            // It is given up again already.
            return;
        }
        trouble.succeeded();
        drop(trouble);
        self.late.store(false, Ordering::Relaxed);
        self.note_certificate(connected);
    }

    /// Notes the certificate that the server has shown.
    pub(crate) fn note_certificate(&self, connected: &Connected) {
        if let Some(session) = connected.wire.session() {
            lock(&self.reports.certificate).connected(session);
        }
    }

    /// An attempt to connect has failed.
    pub(crate) fn failed_to_connect(&self, why: &str, how: ConnectFailure) {
        let (up, _) = self.siblings.connections();
        let line = lock(&self.reports.trouble).failed(why, how, (up, Instant::now()));
        line.into_iter().for_each(|line| self.say(line));
    }

    /// Why connections are missing; none if none is.
    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.reports.trouble).text(self.siblings.connections())
    }

    /// Lines of news that nobody has taken.
    pub(crate) fn take_news(&self) -> Vec<String> {
        let mut news: Vec<String> = lock(&self.reports.news).drain(..).collect();
        news.extend(lock(&self.reports.trouble).missing(self.siblings.connections()));
        news.extend(lock(&self.reports.certificate).news());
        news
    }

    /// A server is lost, or was when a write was answered: if it may have lost answered writes, the
    /// next flush is to fail.
    pub(crate) fn note_loss(&self) {
        if self.durability.on_server_restart == OnServerRestart::FlushError
            && self.durability.unflushed.exist()
        {
            self.durability.owes_error.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a flush or FUA write that succeeded is to fail, which is asked once for each loss,
    /// and logged then.
    pub(crate) fn take_error(&self) -> bool {
        let Durability { owes_error, has_failed, stopping, .. } = &self.durability;
        let owes = owes_error.load(Ordering::SeqCst) && owes_error.swap(false, Ordering::SeqCst);
        if owes {
            self.say(format!(
                "{FLUSH_TROUBLE}, so this flush fails ({FLUSH_ERROR}); check or restore what was \
                 written since the last flush that succeeded"
            ));
        }
        // Relaxed: text for people. While the daemon stops each thread flushes: one success of
        // several hides no failure.
        let keeps = !owes && stopping.load(Ordering::Relaxed);
        if has_failed.load(Ordering::Relaxed) != owes && !keeps {
            has_failed.store(owes, Ordering::Relaxed);
        }
        owes
    }

    /// Why the last flush failed; none if it did not, or the server failed it.
    pub(crate) fn flush_trouble(&self) -> Option<String> {
        let has_failed = self.durability.has_failed.load(Ordering::Relaxed);
        has_failed.then(|| format!("{FLUSH_TROUBLE}; {FLUSH_ERROR}"))
    }

    /// Returns true if a flush need not wait for the server, which may be gone or hang: the daemon
    /// stops, and nothing is unflushed.
    pub(crate) fn is_flush_needless(&self) -> bool {
        // Relaxed: set before the flush that is to see it is submitted.
        self.durability.stopping.load(Ordering::Relaxed) && !self.durability.unflushed.exist()
    }

    /// The generation of a connection that is made from now on.
    pub(crate) fn generation(&self) -> u32 {
        // SeqCst pairs with `end`: what ended it is known, and a write that is answered meanwhile
        // is seen there or sees the end.
        self.generation.load(Ordering::SeqCst)
    }

    /// Ends a generation, of which a connection is lost, and tells all queues; false if another one
    /// was lost before.
    pub(crate) fn end(&self, generation: u32, loss: Loss<'_>) -> bool {
        let next = generation.wrapping_add(1);
        // SeqCst pairs with `generation`; Relaxed: a failure reads nothing.
        let ended =
            self.generation.compare_exchange(generation, next, Ordering::SeqCst, Ordering::Relaxed);
        if ended.is_err() {
            return false;
        }
        self.note_loss();
        let now = Instant::now();
        let mut backoff = lock(&self.backoff);
        loss.since.iter().for_each(|since| backoff.lost(*since, now));
        backoff.was_silent = loss.cause == Cause::Silence;
        drop(backoff);
        lock(&self.reports.trouble).lost(loss.why);
        self.siblings.begin_generation(next);
        true
    }

    /// Whether the last generation ended because the server was silent.
    pub(crate) fn was_silent(&self) -> bool {
        lock(&self.backoff).was_silent
    }

    /// Whether the export has changed so that the drive cannot go on.
    pub(crate) fn is_dead(&self) -> bool {
        // Relaxed: it orders nothing, and is never taken back.
        self.dead.load(Ordering::Relaxed)
    }

    /// The export has changed: all connections are given up; tells people why, once.
    pub(crate) fn die(&self, why: String) {
        if !self.dead.swap(true, Ordering::Relaxed) {
            lock(&self.reports.trouble).lost(&why);
            self.say(why.clone());
            let loss = Loss { cause: Cause::Other, why: &why, since: None };
            self.end(self.generation(), loss);
        }
    }

    /// The epoch of a connection that knows this size.
    pub(crate) fn epoch_of(&self, size_bytes: u64) -> u32 {
        // Acquire pairs with the Release of `revalidate`.
        let epoch = self.epoch.load(Ordering::Acquire);
        // Relaxed: written before the epoch was.
        let knows = size_bytes >= self.promise.size_bytes.load(Ordering::Relaxed);
        if knows { epoch } else { epoch.wrapping_sub(1) }
    }

    /// Keeps a line for whoever tells people; the oldest is forgotten where nobody does.
    pub(crate) fn say(&self, text: String) {
        let mut news = lock(&self.reports.news);
        if news.len() == NEWS_MAX {
            news.pop_front();
        }
        news.push_back(text);
    }
}

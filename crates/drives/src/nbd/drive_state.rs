//! `NbdState`: the state that all queues of an NBD drive share.
//!
//! Invariant: connections of one generation lead to the same server process. After a loss, the
//! address may lead to a new process (restarted, or a standby), which lacks the writes that the old
//! process received. So connections of an older generation no longer send requests or accept
//! answers.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use millrace_machine::lock_unpoisoned;
use millrace_nbd::TransmissionFlags;
use millrace_nbd::client::ClientSession;
use millrace_tls::{CertificateExpiry, Lifetime};

use super::backoff::{LogLimit, ReconnectBackoff};
use super::dial::{NegotiatedConnection, ServerTarget};
use super::siblings::{ConnectionSharing, SiblingQueues};
use super::status_line::StatusLine;
use super::trouble::ReconnectTrouble;
use super::{MAX_SECTORS, OnServerRestart};

const FLUSH_TROUBLE: &str =
    "the drive reconnected to its server, which may have lost writes that were not flushed";
const FLUSH_ERROR: &str = "on-server-restart = \"flush-error\"";

const NEWS_MAX: usize = 64;

/// Features of an export that every later connection must have if the first one has them, because
/// the drive has reported them to the block layer.
const PROMISED: [(TransmissionFlags, &str); 4] = [
    (TransmissionFlags::FLUSH, "flush"),
    (TransmissionFlags::FUA, "FUA"),
    (TransmissionFlags::TRIM, "trim"),
    (TransmissionFlags::WRITE_ZEROES, "write zeroes"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossCause {
    Silence,
    Other,
}

/// Tracks whether a drive has acknowledged a write that no successful flush covers yet.
///
/// A flush covers the writes that were acknowledged before it was submitted. So flushes are
/// numbered from 1 in the order of submission, and an acknowledged write is covered by the next
/// flush to be submitted. Only the first write after each flush changes the tracker; other writes
/// only read it, so that threads do not contend for its cache line.
#[derive(Debug, Default)]
pub(crate) struct UnflushedWrites {
    /// Sequence number of the last flush submitted.
    begun: AtomicU64,
    /// Sequence number of the first flush that covers all acknowledged writes.
    needed: AtomicU64,
    /// Sequence number of the last flush that succeeded.
    done: AtomicU64,
}

impl UnflushedWrites {
    /// Records that a non-durable write was acknowledged. SeqCst here and below: if another thread
    /// handles the loss of a connection at the same time, that thread finds this write, or this
    /// thread sees the loss, or both.
    #[inline]
    pub(crate) fn note_write(&self) {
        let needed = self.begun.load(Ordering::SeqCst) + 1;
        if self.needed.load(Ordering::SeqCst) < needed {
            self.needed.fetch_max(needed, Ordering::SeqCst);
        }
    }

    pub(crate) fn begin_flush(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn end_flush(&self, number: u64) {
        self.done.fetch_max(number, Ordering::SeqCst);
    }

    /// Returns true if an acknowledged write is not covered by a successful flush.
    pub(crate) fn exist(&self) -> bool {
        self.needed.load(Ordering::SeqCst) > self.done.load(Ordering::SeqCst)
    }
}

#[derive(Debug, Default)]
pub(crate) struct FlushDurability {
    pub(crate) unflushed: UnflushedWrites,
    /// True if the next flush or FUA write must fail, because a server with unflushed writes was
    /// lost.
    pub(crate) owes_error: AtomicBool,
    /// True if the last flush or FUA write has failed because a lost server may have lost unflushed
    /// writes.
    pub(crate) has_failed: AtomicBool,
    /// True while the daemon stops. If there are no unflushed writes, a flush then does not wait
    /// for a lost server.
    pub(crate) stopping: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct DriveReports {
    news: Mutex<VecDeque<String>>,
    pub(crate) trouble: Mutex<ReconnectTrouble>,
    certificate: Mutex<CertificateWatch>,
    /// Limits the log lines about a server that accepts connections but never answers.
    futility: Mutex<LogLimit>,
}

/// Warns before the server's certificate expires, and when it has expired. An expired certificate
/// does not end an open connection, but makes the next one fail.
#[derive(Debug, Default)]
struct CertificateWatch {
    lifetime: Option<Lifetime>,
    said: Option<CertificateExpiry>,
}

impl CertificateWatch {
    /// Returns a line for the log, once a day, if the certificate expires soon or has expired.
    fn news(&mut self) -> Option<String> {
        let expiry = self.lifetime.as_ref()?.expiry(SystemTime::now());
        let is_new = self.said.as_ref() != Some(&expiry);
        let line = (is_new && expiry != CertificateExpiry::Far).then(|| {
            format!(
                "the server's certificate {expiry}; after that, a lost connection cannot be \
                 restored until the server has a new certificate"
            )
        });
        self.said = Some(expiry);
        line
    }
}

pub(crate) struct NbdState {
    pub(crate) target: ServerTarget,
    /// Properties of the export when the drive was opened. Later connections must keep them.
    pub(crate) session: ClientSession,
    /// Minimum size that the server must report on later connections, in bytes.
    pub(crate) size_bytes: AtomicU64,
    /// True from the end of the time limit for reconnecting until a new connection is made.
    pub(crate) late: AtomicBool,
    /// Epoch: number of times that the drive has grown. Connections of older epochs are replaced.
    pub(crate) epoch: AtomicU32,
    /// Number of the current connection generation (connections made after the same loss). The loss
    /// of a connection increments the number, and connections of earlier generations are closed.
    pub(crate) generation: AtomicU32,
    pub(crate) backoff: Mutex<ReconnectBackoff>,
    /// Number of queues with requests that wait for the server to come back.
    pub(crate) searching: AtomicU32,
    /// True if the export has changed in a way that makes the drive unusable.
    pub(crate) dead: AtomicBool,
    pub(crate) siblings: SiblingQueues,
    pub(crate) durability: FlushDurability,
    pub(crate) reports: DriveReports,
    /// Connection made when the drive was opened, for the queue that is opened first.
    pub(crate) first: Mutex<Option<NegotiatedConnection>>,
    pub(crate) status_line: Mutex<StatusLine>,
}

impl NbdState {
    pub(crate) fn has(&self, flag: TransmissionFlags) -> bool {
        self.session.flags.contains(flag)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.target.config.is_read_only(&self.session)
    }

    /// Returns the minimum alignment of the offset and length of a request, in bytes.
    pub(crate) fn block_min(&self) -> u32 {
        self.session.block_min.max(512)
    }

    /// Returns the maximum length of a read or write, in bytes.
    pub(crate) fn payload_max(&self) -> u32 {
        MAX_SECTORS.min(self.session.block_max >> 9) << 9
    }

    /// Returns `WithOthers` if the drive is read-only or the server supports `multi-conn`, else
    /// `Alone`. With `multi-conn`, a flush on one connection covers the writes of all connections.
    pub(crate) fn sharing(&self, session: &ClientSession) -> ConnectionSharing {
        match self.is_read_only() || session.flags.contains(TransmissionFlags::MULTI_CONN) {
            true => ConnectionSharing::WithOthers,
            false => ConnectionSharing::Alone,
        }
    }

    /// Returns an error if the export no longer has the properties that the drive has reported to
    /// the block layer.
    pub(crate) fn is_kept_by(&self, session: &ClientSession) -> Result<(), String> {
        // Relaxed: the size only grows. If an old value is read here, a connection with too small a
        // size may be accepted. `epoch_of` then marks that connection as outdated, and the link
        // replaces it.
        let had_bytes = self.size_bytes.load(Ordering::Relaxed);
        let is_lost = |flag| self.has(flag) && !session.flags.contains(flag);
        let lacks = PROMISED.iter().filter(|(flag, _)| is_lost(*flag));
        let lacks: Vec<&str> = lacks.map(|(_, word)| *word).collect();
        let (least, most) = (session.block_min, session.block_max);
        let (least_before, most_before) = (self.block_min(), self.payload_max());
        let change = if session.size_bytes < had_bytes {
            format!("now has {} bytes instead of {had_bytes}", session.size_bytes)
        } else if session.flags.contains(TransmissionFlags::READ_ONLY) && !self.is_read_only() {
            // A server reports no FUA and no trim for a read-only export, so this check comes
            // before the one for missing features.
            "is read-only now".to_owned()
        } else if !lacks.is_empty() {
            format!("supports less than before: no {}", lacks.join(", no "))
        } else if least > least_before || most < most_before {
            format!(
                "takes blocks of {least} bytes and requests of {most} at most, before it was \
                 {least_before} and {most_before}"
            )
        } else {
            return Ok(());
        };
        Err(format!(
            "{}: the export {change}; the drive fails all I/O until it is opened again, for example \
             by a restart",
            self.target.config.text
        ))
    }

    pub(crate) fn is_late(&self) -> bool {
        // Relaxed: no other memory access depends on this flag. A queue that reads an old value
        // waits once more.
        self.late.load(Ordering::Relaxed)
    }

    /// Records that the time limit for reconnecting has passed. Returns false if it had passed
    /// before.
    pub(crate) fn became_late(&self) -> bool {
        let is_first = !self.late.swap(true, Ordering::Relaxed);
        if is_first {
            lock_unpoisoned(&self.backoff).requests_fail();
        }
        is_first
    }

    pub(crate) fn say_requests_fail(&self, text: String) {
        if lock_unpoisoned(&self.reports.futility).allows(Instant::now()) {
            lock_unpoisoned(&self.backoff).requests_fail();
            self.say(text);
        }
    }

    /// Returns the number of short-lived connections in a row, for a log line about the loss of a
    /// connection. Returns `None` if the limit of log lines suppresses that line.
    pub(crate) fn logs_loss(&self) -> Option<u32> {
        let backoff = lock_unpoisoned(&self.backoff);
        backoff.is_logged().then(|| backoff.short)
    }

    pub(crate) fn came_back(&self, connected: &NegotiatedConnection, generation: u32) {
        let mut trouble = lock_unpoisoned(&self.reports.trouble);
        if generation != self.generation() {
            // Another connection was lost while this connection was made. A loss ends all
            // connections of the drive, including this new one. So the drive has not come back, and
            // `trouble` keeps the reason for the loss.
            return;
        }
        *trouble = ReconnectTrouble::default();
        drop(trouble);
        self.late.store(false, Ordering::Relaxed);
        self.note_certificate(connected);
    }

    pub(crate) fn note_certificate(&self, connected: &NegotiatedConnection) {
        if let Some(session) = connected.wire.session() {
            lock_unpoisoned(&self.reports.certificate).lifetime = session.peer_lifetime().cloned();
        }
    }

    /// Records why a connection was lost or could not be made.
    pub(crate) fn note_trouble(&self, why: impl Into<String>) {
        lock_unpoisoned(&self.reports.trouble).why = Some(why.into());
    }

    pub(crate) fn note_refusal(&self, why: &str) {
        let (up, _) = self.siblings.connections();
        let line = lock_unpoisoned(&self.reports.trouble).refused(why, up, Instant::now());
        line.into_iter().for_each(|line| self.say(line));
    }

    pub(crate) fn take_news(&self) -> Vec<String> {
        let mut news: Vec<String> = lock_unpoisoned(&self.reports.news).drain(..).collect();
        news.extend(lock_unpoisoned(&self.reports.trouble).missing(self.siblings.connections()));
        news.extend(lock_unpoisoned(&self.reports.certificate).news());
        news
    }

    /// With `OnServerRestart::FlushError`, makes the next flush or FUA write fail if there are
    /// unflushed writes, because a lost server may have lost them. Called at each loss of a
    /// connection, and again for a write that is acknowledged while a loss is handled.
    pub(crate) fn note_loss(&self) {
        if self.target.config.on_server_restart == OnServerRestart::FlushError
            && self.durability.unflushed.exist()
        {
            self.durability.owes_error.store(true, Ordering::SeqCst);
        }
    }

    /// Returns true if a flush or FUA write must fail although the server completed it, because
    /// earlier writes may be lost. Returns true once for each loss, and logs it.
    pub(crate) fn take_error(&self) -> bool {
        let FlushDurability { owes_error, has_failed, stopping, .. } = &self.durability;
        let owes = owes_error.load(Ordering::SeqCst) && owes_error.swap(false, Ordering::SeqCst);
        if owes {
            self.say(format!(
                "{FLUSH_TROUBLE}, so this flush fails ({FLUSH_ERROR}); check or restore what was \
                 written since the last flush that succeeded"
            ));
        }
        // Relaxed: `has_failed` only selects the text of a report. While the daemon stops, a
        // successful flush does not clear `has_failed`: another thread's flush may have set it, and
        // the report would lose that failure.
        let keeps = !owes && stopping.load(Ordering::Relaxed);
        if has_failed.load(Ordering::Relaxed) != owes && !keeps {
            has_failed.store(owes, Ordering::Relaxed);
        }
        owes
    }

    pub(crate) fn flush_trouble(&self) -> Option<String> {
        let has_failed = self.durability.has_failed.load(Ordering::Relaxed);
        has_failed.then(|| format!("{FLUSH_TROUBLE}; {FLUSH_ERROR}"))
    }

    /// Returns true if a flush need not wait for a lost or hung server, because the daemon is
    /// stopping and there are no unflushed writes.
    pub(crate) fn is_flush_needless(&self) -> bool {
        // Relaxed: `prepare_stop` sets `stopping` before the flushes that depend on it are
        // submitted, and their submission makes the value visible to this thread.
        self.durability.stopping.load(Ordering::Relaxed) && !self.durability.unflushed.exist()
    }

    pub(crate) fn generation(&self) -> u32 {
        // SeqCst pairs with `end`. A thread that reads the new generation also sees the reason for
        // the change, such as `dead`. `end` increments `generation`, then checks for unflushed
        // writes. `NbdLink::received` records an unflushed write, then reads `generation`. So `end`
        // finds the write, or `received` sees the new generation, or both.
        self.generation.load(Ordering::SeqCst)
    }

    /// Ends a connection generation (connections made after the same loss) because one of its
    /// connections was lost. Notifies all queues. Returns false if the generation has already
    /// ended.
    ///
    /// `since` is the time at which the lost connection was made, so that the back-off knows how
    /// long the connection has lasted. If the export has changed, `since` is `None`.
    pub(crate) fn end(
        &self,
        generation: u32,
        why: &str,
        cause: LossCause,
        since: Option<Instant>,
    ) -> bool {
        let next = generation.wrapping_add(1);
        // SeqCst pairs with the load in `generation()`. The generation must change before
        // `note_loss` checks for unflushed writes. If the exchange fails, the value that it has
        // read is not used, so Relaxed is enough.
        let ended =
            self.generation.compare_exchange(generation, next, Ordering::SeqCst, Ordering::Relaxed);
        if ended.is_err() {
            return false;
        }
        self.note_loss();
        let now = Instant::now();
        let mut backoff = lock_unpoisoned(&self.backoff);
        since.iter().for_each(|since| backoff.lost(*since, now));
        backoff.was_silent = cause == LossCause::Silence;
        drop(backoff);
        self.note_trouble(why);
        self.siblings.begin_generation(next);
        true
    }

    pub(crate) fn is_dead(&self) -> bool {
        // Relaxed: no other memory access depends on this flag, and it is never reset.
        self.dead.load(Ordering::Relaxed)
    }

    /// Gives up all connections because the export has changed. Logs the reason once.
    pub(crate) fn die(&self, why: String) {
        if !self.dead.swap(true, Ordering::Relaxed) {
            self.note_trouble(&*why);
            self.say(why.clone());
            self.end(self.generation(), &why, LossCause::Other, None);
        }
    }

    /// Returns the epoch of a new connection on which the server has reported a size of
    /// `size_bytes`. The epoch is the number of times that the drive has grown. If the size is at
    /// least the drive's size, returns the current epoch. Otherwise returns the previous epoch, so
    /// that the connection counts as outdated and is replaced.
    pub(crate) fn epoch_of(&self, size_bytes: u64) -> u32 {
        // Acquire pairs with the Release in `revalidate`, which stores the size before `epoch`.
        let epoch = self.epoch.load(Ordering::Acquire);
        // Relaxed: `revalidate` stores the drive's size before it increments `epoch`, and `epoch`
        // was read with Acquire above.
        let knows = size_bytes >= self.size_bytes.load(Ordering::Relaxed);
        if knows { epoch } else { epoch.wrapping_sub(1) }
    }

    /// Keeps a line for the log. If the list of lines is full, the oldest one is dropped.
    pub(crate) fn say(&self, text: String) {
        let mut news = lock_unpoisoned(&self.reports.news);
        if news.len() == NEWS_MAX {
            news.pop_front();
        }
        news.push_back(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_answered_before_it_was_handed_over() {
        let writes = UnflushedWrites::default();
        assert!(!writes.exist());
        let empty = writes.begin_flush();
        writes.note_write();
        writes.end_flush(empty);
        assert!(writes.exist(), "the write came behind the flush");
        let (failed, covers) = (writes.begin_flush(), writes.begin_flush());
        assert!(failed < covers && writes.exist());
        writes.end_flush(covers);
        assert!(!writes.exist());
        writes.end_flush(failed);
        writes.note_write();
        assert!(writes.exist());
    }
}

//! `ReconnectThread`: reconnects a link to its server, on a thread of its own.
//!
//! A link that has lost its server starts a thread. The thread wakes the link when it has made a
//! connection, when the time limit has passed (it then keeps trying for later requests), or when
//! the export has changed. The thread ends when it has a connection, or when the link no longer
//! needs one. If the system refuses the thread, the link asks again after a pause.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_machine::{Deadline, Native, lock_unpoisoned};

use super::NbdState;
use super::dial::{DialPurpose, NegotiatedConnection, is_refusal};
use super::trouble::NOT_SHARED;
use crate::common::owner_queues::wake_up;

pub(crate) const ATTEMPT: Duration = Duration::from_secs(5);
/// Pause after the first attempt. Each further attempt doubles the pause.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Pause before the next attempt to start a thread if the system could not start one.
const THREAD_PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause while other connections of the drive are up. A failed attempt then probably means
/// that the server limits its connections, and the server may log each attempt.
const PAUSE_SHORT_MAX: Duration = Duration::from_secs(30);

pub(crate) enum ReconnectOutcome {
    Connected(NegotiatedConnection),
    /// The time limit for reconnecting has passed. The thread keeps trying.
    Late(String),
    /// The export has changed in a way that makes the drive unusable.
    Changed(String),
}

pub(crate) struct ReconnectOrder {
    pub(crate) generation: u32,
    /// Maximum time that I/O waits for the server.
    pub(crate) limit: Duration,
    /// Number of open connections (0 or 1) that the new connection replaces.
    pub(crate) own: usize,
}

#[derive(Default)]
struct ReconnectState {
    outcome: Option<ReconnectOutcome>,
    /// Serial number of the latest [`ReconnectOrder`]. A thread that works on an older one ends.
    wish: u64,
    /// Reason why the system could not start a thread for the latest [`ReconnectOrder`], and the
    /// time of the next attempt to start one.
    refused: Option<(String, Deadline<Native>)>,
}

pub(crate) struct ReconnectThread {
    state: Mutex<ReconnectState>,
    changed: Condvar,
    wake: Arc<OwnedFd>,
}

impl ReconnectThread {
    pub(crate) fn new(wake: Arc<OwnedFd>) -> ReconnectThread {
        ReconnectThread { state: Mutex::default(), changed: Condvar::new(), wake }
    }

    pub(crate) fn ask(self: &Arc<Self>, shared: &Arc<NbdState>, patience: ReconnectOrder) {
        let wish = self.forget();
        let (mine, theirs) = (Arc::clone(self), Arc::clone(shared));
        let body = move || mine.run(&theirs, wish, patience);
        if let Err(error) = Native::try_spawn("millrace-nbd", None, body) {
            let why = error.to_string();
            shared.note_trouble(&*why);
            lock_unpoisoned(&self.state).refused = Some((why, Deadline::after(THREAD_PAUSE)));
        }
    }

    /// Returns true if no thread could be started, and the next attempt to start one is due.
    pub(crate) fn is_due(&self) -> bool {
        let mut state = lock_unpoisoned(&self.state);
        state.refused.as_mut().is_some_and(|(_, next)| next.is_over())
    }

    pub(crate) fn refusal(&self) -> Option<String> {
        lock_unpoisoned(&self.state).refused.as_ref().map(|(why, _)| why.clone())
    }

    pub(crate) fn take(&self) -> Option<ReconnectOutcome> {
        lock_unpoisoned(&self.state).outcome.take()
    }

    /// Cancels a reconnect in progress, whose thread then ends. Returns the serial number of the
    /// next reconnect.
    pub(crate) fn forget(&self) -> u64 {
        let mut state = lock_unpoisoned(&self.state);
        state.wish += 1;
        (state.outcome, state.refused) = (None, None);
        self.changed.notify_all();
        state.wish
    }

    fn run(&self, shared: &Arc<NbdState>, wish: u64, patience: ReconnectOrder) {
        let (mut pause, mut late) = (lock_unpoisoned(&shared.backoff).pause(Instant::now()), false);
        let mut limit = Deadline::<Native>::after(patience.limit);
        while self.rest(wish, pause) {
            let dial = |it: &mut _| shared.target.dial_until(DialPurpose::Transmit, it);
            // While I/O waits for the server, an attempt to connect must end within the rest of
            // `patience.limit`.
            let time = match late || patience.limit.is_zero() {
                true => ATTEMPT,
                false => Duration::from_nanos(limit.left_ns()).clamp(PAUSE_MIN, ATTEMPT),
            };
            let why = match limit.within(time, dial) {
                Ok(connected) => match outcome(shared, connected, &patience) {
                    Some(outcome) => return self.tell(wish, outcome),
                    None => NOT_SHARED.to_owned(),
                },
                Err(error) => {
                    let why = error.to_string();
                    if is_refusal(&error) {
                        shared.note_refusal(&why);
                    }
                    why
                }
            };
            shared.note_trouble(&*why);
            if !late && limit.is_over() {
                self.tell(wish, ReconnectOutcome::Late(why));
                late = true;
            }
            let most = match shared.siblings.has_connection() {
                true => PAUSE_SHORT_MAX,
                false => PAUSE_MAX,
            };
            pause = (pause * 2).clamp(PAUSE_MIN, most);
            if !late {
                pause = pause.min(Duration::from_nanos(limit.left_ns()).max(PAUSE_MIN));
            }
        }
    }

    /// Waits for `pause`. Returns false if the reconnect with the serial number `wish` was
    /// cancelled.
    fn rest(&self, wish: u64, pause: Duration) -> bool {
        let state = lock_unpoisoned(&self.state);
        let holds = |state: &mut ReconnectState| state.wish == wish;
        let waited = self.changed.wait_timeout_while(state, pause, holds);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.wish == wish
    }

    fn tell(&self, wish: u64, outcome: ReconnectOutcome) {
        let mut state = lock_unpoisoned(&self.state);
        if state.wish != wish {
            return;
        }
        state.outcome = Some(outcome);
        drop(state);
        wake_up(&self.wake);
    }
}

/// Returns the outcome of a new connection. Returns `None` if the connection cannot be used while
/// other connections are open, because the server does not support `multi-conn`.
fn outcome(
    shared: &NbdState,
    connected: NegotiatedConnection,
    patience: &ReconnectOrder,
) -> Option<ReconnectOutcome> {
    if let Err(text) = shared.is_kept_by(&connected.session) {
        return Some(ReconnectOutcome::Changed(text));
    }
    let sharing = shared.sharing(&connected.session);
    if !shared.siblings.admits(sharing, patience.own) {
        return None;
    }
    shared.came_back(&connected, patience.generation);
    Some(ReconnectOutcome::Connected(connected))
}

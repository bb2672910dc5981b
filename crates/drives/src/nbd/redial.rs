//! `Redial`: one link's way back to its server, on a thread that does nothing else.
//!
//! A link that has lost its server asks, goes on with other things, and is woken when there is
//! news: a new connection, that the time for it is over (the thread goes on trying, for whoever
//! comes later), or that the export is not the same any more. Owns what passes between the two. A
//! thread ends when it has a connection or nobody wants one any more. Called by `link.rs`; calls
//! `dial.rs`.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use millrace_machine::{Deadline, Machine, Native};

use super::NbdState;
use super::dial::{Connected, Purpose, failure_of};
use super::drive_state::wake_up;
use super::trouble::{ConnectFailure, NOT_SHARED};

/// Longest time for one attempt.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(5);
/// First pause between two attempts; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest pause while other connections are up: the server lets in no more, and may note each try.
const PAUSE_SHORT_MAX: Duration = Duration::from_secs(30);

/// What a link is told.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There is a connection again.
    Connected(Connected),
    /// The time for coming back is over; another outcome may follow.
    Late(String),
    /// The export is not what it was.
    Changed(String),
}

/// The purpose of a thread that connects, and its limit of time.
#[derive(Debug)]
pub(crate) struct Patience {
    /// The generation of the connection.
    pub(crate) generation: u32,
    /// Longest wait of I/O for the server.
    pub(crate) limit: Duration,
    /// Open connections that the new one takes the place of.
    pub(crate) own: usize,
}

#[derive(Debug, Default)]
struct RedialState {
    outcome: Option<Outcome>,
    /// Which of the link's wishes holds; a thread with another number ends.
    wish: u64,
}

/// What a link and its thread share.
#[derive(Debug)]
pub(crate) struct Redial {
    state: Mutex<RedialState>,
    changed: Condvar,
    /// Wakes the link's thread.
    wake: Arc<OwnedFd>,
}

impl Redial {
    /// For a link on the thread that `wake` wakes.
    pub(crate) fn new(wake: Arc<OwnedFd>) -> Redial {
        Redial { state: Mutex::default(), changed: Condvar::new(), wake }
    }

    /// Starts a thread that connects.
    pub(crate) fn ask(self: &Arc<Self>, shared: &Arc<NbdState>, patience: Patience) {
        let wish = self.forget();
        let (mine, shared) = (Arc::clone(self), Arc::clone(shared));
        let body = Box::new(move || mine.run(&shared, wish, patience));
        let _detached = Native::spawn("millrace-nbd", None, body);
    }

    /// What came of it since the last call.
    pub(crate) fn take(&self) -> Option<Outcome> {
        self.lock().outcome.take()
    }

    /// Wants no connection any more. Returns the number of the next wish.
    pub(crate) fn forget(&self) -> u64 {
        let mut state = self.lock();
        state.wish += 1;
        state.outcome = None;
        self.changed.notify_all();
        state.wish
    }

    fn run(&self, shared: &Arc<NbdState>, wish: u64, patience: Patience) {
        let (mut pause, mut late) = (shared.pause(), false);
        let mut limit = Deadline::<Native>::after(patience.limit);
        while self.rest(wish, pause) {
            let dial = |it: &mut _| shared.target.dial_until(Purpose::Transmit, it);
            // The last attempt of those that I/O waits for ends with its time.
            let time = match late || patience.limit.is_zero() {
                true => ATTEMPT,
                false => Duration::from_nanos(limit.left_ns()).clamp(PAUSE_MIN, ATTEMPT),
            };
            let (why, how) = match limit.within(time, dial) {
                Ok(connected) => match outcome(shared, connected, &patience) {
                    Some(outcome) => return self.tell(wish, outcome),
                    None => (NOT_SHARED.to_owned(), ConnectFailure::Other),
                },
                Err(error) => (error.to_string(), failure_of(&error)),
            };
            shared.failed_to_connect(&why, how);
            if !late && limit.is_over() {
                self.tell(wish, Outcome::Late(why));
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

    /// Waits; false if the wish holds no more.
    fn rest(&self, wish: u64, pause: Duration) -> bool {
        let state = self.lock();
        let holds = |state: &mut RedialState| state.wish == wish;
        let waited = self.changed.wait_timeout_while(state, pause, holds);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.wish == wish
    }

    fn tell(&self, wish: u64, outcome: Outcome) {
        let mut state = self.lock();
        if state.wish != wish {
            return;
        }
        state.outcome = Some(outcome);
        drop(state);
        wake_up(&self.wake);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RedialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What comes of a new connection; none if it may not be used beside those that are open.
fn outcome(shared: &NbdState, connected: Connected, patience: &Patience) -> Option<Outcome> {
    if let Err(text) = shared.promise.kept_by(&connected.session) {
        return Some(Outcome::Changed(text));
    }
    let sharing = shared.promise.sharing(&connected.session);
    if !shared.siblings.admits(sharing, patience.own) {
        return None;
    }
    shared.came_back(&connected, patience.generation);
    Some(Outcome::Connected(connected))
}

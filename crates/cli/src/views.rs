//! Views over a running daemon: its control socket and its metrics page.
//!
//! protocol.rs is what a line on the control socket means (requests.rs its arguments), report.rs
//! what the counters look like on it (groups.rs those of groups, caches.rs those of caches, locks.rs
//! those of locks, growth.rs what growing came to, history.rs samples of the last hour),
//! prometheus.rs the same for Prometheus; thread.rs serves both sockets from one thread that sleeps
//! when nobody asks, session.rs is one client of it, http.rs the little of HTTP that it speaks.
//! client.rs is the
//! other end of the control socket. `serve` starts the thread and answers ([`Answers`]); a new verb
//! is a variant of [`Verb`], its name in `protocol::verb`, and its arm there. Nothing here is on
//! the way of an I/O: counters are read, never written. The protocol is described in
//! docs/control.md.

pub mod caches;
pub mod client;
pub mod clients;
pub mod groups;
pub mod growth;
pub mod guests;
pub mod history;
mod http;
pub mod locks;
mod prometheus;
mod protocol;
pub mod reload_report;
pub mod report;
mod requests;
mod session;
pub mod settings;
mod thread;

pub use prometheus::render as prometheus;
pub use protocol::{CONTROL_VERSION, Refusal, Verb, greeting};
pub use requests::{
    Acknowledge, AddSection, Disconnect, HistoryRange, LogLevel, Reload, RemoveSection, Resize,
    Set, SetGroup, StatsQuery, TraceStart,
};
pub use thread::{Sockets, Views};

/// What answers a verb and gives the metrics: the daemon.
pub trait Answers: Send + Sync {
    /// The value of `ok` in the reply to a verb.
    ///
    /// # Errors
    /// Why there is none.
    fn answer(&self, verb: &Verb) -> Result<serde_json::Value, Refusal>;

    /// Counters as Prometheus reads them.
    fn metrics(&self, query: StatsQuery) -> String;

    /// A line for each drive that is not well; none from a daemon that is.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

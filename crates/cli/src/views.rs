//! Views over a running daemon: its control socket and its metrics page.
//!
//! protocol.rs is what a line on the control socket means and how a table of verbs answers it,
//! requests.rs the verbs with their arguments, report.rs what the counters look like on it
//! (groups.rs those of groups, caches.rs those of caches, locks.rs those of locks, history.rs
//! samples of the last hour), prometheus.rs the same for Prometheus; thread.rs serves both sockets
//! from one thread that sleeps when nobody asks (metrics_listener.rs is one of them, which may
//! change), session.rs is one client of it, http.rs the little of HTTP that it speaks. client.rs is
//! the other end of the control socket. `serve` starts the thread and answers ([`Answers`]) with
//! the table of verbs/ctl.rs. Nothing here is on the way of an I/O: counters are read, never
//! written. The protocol is described in docs/control.md.

pub mod caches;
pub mod client;
pub mod clients;
pub mod groups;
pub mod guests;
pub mod history;
mod http;
pub mod locks;
pub mod metrics_listener;
mod prometheus;
mod protocol;
pub mod reload_report;
pub mod report;
pub mod requests;
mod session;
pub mod settings;
mod thread;

use serde_json::{Map, Value};

pub use prometheus::render as prometheus;
pub use protocol::{
    Access, CONTROL_VERSION, ControlVerb, Question, Refusal, Verb, ask, greeting, names,
};
pub use requests::{
    AddSection, HistoryRange, Reload, RemoveSection, Set, SetGroup, StatsQuery, TraceStart,
};
pub use thread::{Sockets, Views};

/// A daemon as its views ask it.
pub trait Answers: Send + Sync {
    /// The first line of the control socket.
    fn greeting(&self) -> Value;

    /// The question that a verb and its arguments make.
    ///
    /// # Errors
    /// If there is no such verb, or it takes no such arguments.
    fn ask(&self, verb: &str, arguments: Map<String, Value>) -> Result<Question, Refusal>;

    /// Counters as Prometheus reads them.
    fn metrics(&self, query: StatsQuery) -> String;

    /// A line for each drive that is not well; none from a daemon that is.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

//! The control socket and the metrics page of a running daemon, together called its views.
//!
//! protocol.rs defines the lines on the control socket and answers them from a table of verbs;
//! requests.rs has the verbs with their arguments, client.rs the client's end. report.rs is the
//! JSON of the counters, and prometheus.rs has the same counters for Prometheus. thread.rs serves
//! both sockets from one thread that sleeps while there is no request. `serve` starts this thread
//! and passes it an implementation of [`Answers`], which uses the table in verbs/ctl.rs. No code
//! here is on the path of an I/O: counters are read, never written.

pub mod caches;
pub mod client;
mod counter_json;
pub mod groups;
pub mod guests;
pub mod history;
mod http;
pub mod locks;
pub mod metrics_listener;
mod metrics_page;
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
    AddSection, HistoryRange, Reload, RemoveSection, SetGroup, SetVolume, StatsQuery, TraceStart,
};
pub use thread::{Sockets, ViewThread};

pub trait Answers: Send + Sync {
    /// Returns the first line that a client of the control socket receives.
    fn greeting(&self) -> Value;

    fn ask(&self, verb: &str, arguments: Map<String, Value>) -> Result<Question, Refusal>;

    fn metrics(&self, query: StatsQuery) -> String;

    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

//! Traces: reads `NAME.blktrace.N` files, the kernel's and ours, shows them and says where I/Os
//! spend their time.
//!
//! Owns one walk over such files in constant memory (`Reader`), and what is made of it: blkparse's
//! lines (`Show`) and btt's spans (`Spans`), whose pairing of events also tells which I/Os there
//! are. Called by `millrace trace` and by the laboratory, whose page of plots, conversions and
//! replays are fed by the same walk. The bytes of a record are `millrace_block::blktrace`'s.
//! `LockLine` has lockmeter's columns of lock statistics, for `millrace locks` and `bench --locks`.
//! Source: blktrace 1.2's tools, whose output is the measure: the same lines, the same digits.

mod drive;
mod error;
mod file;
mod flushes;
mod lock_line;
mod measure;
mod names;
mod overview;
mod reader;
mod show;
mod spans;
mod tree;

pub use drive::{Drive, Kind, Overhead, Seeks};
pub use error::{Damage, Problem, TraceError};
pub use file::PDU_KEPT_MAX;
pub use lock_line::{LockLine, LockSpan};
pub use measure::{Measure, Measures, Span};
pub use names::Names;
pub use overview::{Columns, Per, json_line};
pub use reader::{Entry, Reader, Source, TraceName};
pub use show::{DriverData, Show, line};
pub use spans::{DRIVES_MAX, FLIGHTS_MAX, Sample, Spans, Watch};

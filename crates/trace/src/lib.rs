//! Reads blktrace recordings (`NAME.blktrace.N`) of the kernel and of millrace, prints them, and
//! measures how long I/Os spend in each stage.
//!
//! `Reader` walks over the files of a trace in constant memory. `Show` prints blkparse's lines.
//! `Spans` pairs events into I/Os, and measures btt's spans. `LockLine` formats lock statistics in
//! lockmeter's columns. Source: the tools of blktrace 1.2. The output equals the output of these
//! tools, line by line and digit by digit.

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

pub use drive::{Drive, IoKind, SeekDistances};
pub use error::{DamagedFile, TraceError};
pub use file::PDU_KEPT_MAX;
pub use lock_line::{LockLine, LockSpan};
pub use measure::{Measure, MeasureTable, Span};
pub use names::TraceNames;
pub use overview::{Columns, SpanGrouping, json_line};
pub use reader::{Reader, TraceEntry, TraceName};
pub use show::{DriverData, Show, line};
pub use spans::{DRIVES_MAX, FLIGHTS_MAX, IoListener, Sample, Spans};

//! Traces: reads `NAME.blktrace.N` files, the kernel's and ours, shows them and says where I/Os
//! spend their time.
//!
//! Owns one walk over such files in constant memory (`Reader`), and what is made of it: blkparse's
//! lines (`Show`), btt's spans (`Spans`) and a page of plots (`Timeline`). Called by the verb
//! `millrace trace`. The bytes of a record are `millrace_block::blktrace`'s.
//! Source: blktrace 1.2's tools, whose output is the measure: the same lines, the same digits.

mod drive;
mod error;
mod file;
mod measure;
mod names;
mod overview;
mod reader;
mod report;
mod show;
mod spans;
mod summary;
mod timeline;
mod tree;

pub use drive::{Drive, Kind, Overhead, Seeks};
pub use error::{Problem, TraceError};
pub use file::PDU_KEPT_MAX;
pub use measure::{Measure, Measures, Span};
pub use names::Names;
pub use overview::{Columns, Per, json_line};
pub use reader::{Entry, Reader, Source, TraceName};
pub use report::{report_html, report_page};
pub use show::{DriverData, Show, line};
pub use spans::{DRIVES_MAX, FLIGHTS_MAX, Sample, Spans, Watch};
pub use timeline::Timeline;

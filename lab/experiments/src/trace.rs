//! Where I/Os of a trace spend their time, as a page of plots.
//!
//! Owns what happened when (`Timeline`) and how it is shown. Fed by millrace-trace, which reads the
//! files. Called by `millrace-lab trace report`.

mod report;
mod timeline;

pub use report::{report_html, report_page};
pub use timeline::Timeline;

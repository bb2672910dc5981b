//! `LinkContext`: state that all links of a queue share, lent to one link at a time. Also has texts
//! for errors of operations.
//!
//! The queue owns this state. `queue.rs` creates the context for each pass over the links;
//! `link.rs` uses it.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_block::{Status, Tag};

use super::NbdState;
use super::flight::Flight;
use super::ring::Ring;

/// State shared by all links of a queue.
pub(crate) struct LinkContext<'a> {
    pub(crate) shared: &'a Arc<NbdState>,
    pub(crate) ring: &'a Ring,
    pub(crate) flights: &'a mut [Flight],
    /// Indexes of the requests that wait for a link.
    pub(crate) waiting: &'a mut VecDeque<u32>,
    /// Completed requests.
    pub(crate) done: &'a mut Vec<(Tag, Status)>,
}

/// Returns why an operation ended the connection, as text.
pub(crate) fn errno_text(result: i32) -> String {
    match result {
        0 => "the server hung up".to_owned(),
        _ => std::io::Error::from_raw_os_error(-result).to_string(),
    }
}

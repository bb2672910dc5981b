//! `LinkContext`: state that all links of a queue share, lent to one link at a time.
//!
//! The queue owns this state and creates the context for each pass over its links.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_block::{Status, Tag};

use super::NbdState;
use super::flight::Flight;
use super::ring::Ring;

pub(crate) struct LinkContext<'a> {
    pub(crate) shared: &'a Arc<NbdState>,
    pub(crate) ring: &'a Ring,
    pub(crate) flights: &'a mut [Flight],
    /// Indexes of the requests that wait for a link.
    pub(crate) waiting: &'a mut VecDeque<u32>,
    /// Completed requests.
    pub(crate) done: &'a mut Vec<(Tag, Status)>,
}

pub(crate) fn errno_text(result: i32) -> String {
    match result {
        0 => "the server hung up".to_owned(),
        _ => std::io::Error::from_raw_os_error(-result).to_string(),
    }
}

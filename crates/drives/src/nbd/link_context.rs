//! `LinkContext`: what the links of a queue share, lent to one of them at a time; and errors in
//! words.
//!
//! Owns nothing: the queue does. Made by `queue.rs` for each round, used by `link.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_block::{Status, Tag};

use super::NbdState;
use super::flight::Flight;
use super::ring::Ring;

/// What all links of a queue share.
pub(crate) struct LinkContext<'a> {
    pub(crate) shared: &'a Arc<NbdState>,
    pub(crate) ring: &'a Ring,
    pub(crate) flights: &'a mut [Flight],
    /// Requests that no link has, by index.
    pub(crate) waiting: &'a mut VecDeque<u32>,
    /// Requests that are over.
    pub(crate) done: &'a mut Vec<(Tag, Status)>,
}

/// Why an operation ended a connection.
pub(crate) fn errno_text(result: i32) -> String {
    match result {
        0 => "the server hung up".to_owned(),
        _ => std::io::Error::from_raw_os_error(-result).to_string(),
    }
}

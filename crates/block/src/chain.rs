//! Bios in flight: the slots that they live in, the lists and chains that slots are linked to, and
//! the way back to the channel that submitted them.
//!
//! Stands on `bio`; knows no queue and no drive. A chain is one bio, or several neighbours that
//! were merged and become one request.

pub(crate) mod bio_set;
pub(crate) mod merge;
pub(crate) mod slot;
pub(crate) mod sort;

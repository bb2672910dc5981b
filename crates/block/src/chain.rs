//! Bios in flight: the slots that hold them, the lists and bio chains that link slots, and the
//! completion list that returns bios to their channel.
//!
//! A chain is one bio, or several adjacent bios that were merged and become one request. This layer
//! imports only `bio`; it knows no queue and no drive.

pub(crate) mod bio_set;
pub(crate) mod merge;
pub(crate) mod slot;
pub(crate) mod sort;

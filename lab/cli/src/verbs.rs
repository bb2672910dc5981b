//! The verbs of the command line, one module each. Called by cli.rs.

pub mod bench;
mod drive_notes;
pub mod explore;
mod interrupt;
pub mod paper;
pub mod replay;
pub mod trace;

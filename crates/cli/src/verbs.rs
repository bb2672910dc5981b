//! The verbs of the command line, a module each. Called by cli.rs.

pub mod bench;
pub mod ctl;
mod drive_news;
pub mod explore;
mod interrupt;
pub mod locks;
pub mod paper;
pub mod replay;
pub mod serve;
pub mod stat;
pub mod top;
pub mod trace;

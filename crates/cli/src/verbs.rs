//! The verbs of the command line, one module each. cli.rs calls them.

pub mod connect;
pub mod ctl;
pub mod locks;
pub mod serve;
pub mod stat;
pub mod top;
pub mod trace;

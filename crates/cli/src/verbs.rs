//! The verbs of the command line, a module each. Called by cli.rs.

pub mod connect;
pub mod ctl;
pub mod locks;
pub mod serve;
pub mod stat;
pub mod top;
pub mod trace;

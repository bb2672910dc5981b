//! The library, used as programs use it.

#![allow(clippy::unwrap_used, dead_code, missing_docs)]

mod cache;
mod errors;
mod examples;
mod programs;
#[cfg(feature = "serve")]
mod reload;

//! The library, used as programs use it.

#![allow(clippy::unwrap_used, dead_code, missing_docs)]

mod examples;
mod programs;
#[cfg(feature = "serve")]
mod reload;

//! Types with which the simulated machine implements the trait `Machine`.
//!
//! `word` has words, lines and counters, `lock` ticket locks, `thread` threads and parkers, `meter`
//! statistics of locks built from words, and `spin` busy waiting. Each type calls `world` before it
//! accesses state that threads share.

pub(crate) mod lock;
pub(crate) mod meter;
pub(crate) mod spin;
pub(crate) mod thread;
pub(crate) mod word;

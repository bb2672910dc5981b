//! Types of the trait `Machine` on the simulated machine, a file each.
//!
//! `word` has words, lines and counters, `lock` ticket locks, `thread` threads and parkers, `meter`
//! statistics of locks that are made of words; `spin` is busy waiting. Each passes `world` before
//! it touches what threads share.

pub(crate) mod lock;
pub(crate) mod meter;
pub(crate) mod spin;
pub(crate) mod thread;
pub(crate) mod word;

//! Types with which the simulated machine implements the trait `Machine`.
//!
//! Each type calls `world` before it accesses state that threads share. The modules:
//! - `word`: words (atomic integers), cache lines and counters.
//! - `lock`: ticket locks.
//! - `thread`: threads and parkers.
//! - `meter`: statistics of locks that a program builds from words.
//! - `spin`: busy waiting.

pub(crate) mod lock;
pub(crate) mod meter;
pub(crate) mod spin;
pub(crate) mod thread;
pub(crate) mod word;

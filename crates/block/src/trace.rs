//! Tracing: what an event is, how a thread records it, and how blktrace writes it down.
//!
//! Stands on `queue` for what a driver says of its requests; knows no drive. The calls at each step
//! of an I/O are in `disk/trace.rs`. Kernel counterpart: kernel/trace/blktrace.c.

pub mod blktrace;
pub(crate) mod entry;
pub(crate) mod tracer;

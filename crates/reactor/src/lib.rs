//! Proactor for an I/O thread: sockets, eventfds, timers and drive I/O on one io_uring instance or
//! on epoll.
//!
//! A [`Reactor`] belongs to the thread that created it and is the only place where that thread
//! blocks. Users get a [`Handle`], open a [`Source`] (an inbox for completions), [`Handle::push`]
//! operations ([`Op`]), and [`Handle::take`] their completions after [`Reactor::turn`]. There are
//! two back ends with the same behaviour: io_uring; and epoll, with a thread pool for file
//! operations, where io_uring is refused (containers, old kernels).
//!
//! Rules that always hold:
//! - a pushed operation completes exactly once, even if it is cancelled;
//! - memory that an operation names belongs to the reactor until its completion is taken;
//! - `turn` may return early with 0 (a signal, a wake-up, an internal completion), so call it in a
//!   loop;
//! - a socket operation never completes with `-EAGAIN`, while file operations pass every errno
//!   through.

#![doc = include_str!("../README.md")]

mod config;
mod epoll;
mod hub;
mod lent;
mod op;
mod pool;
mod reactor;
mod spin;
mod sys;
mod table;
mod uring;

pub use config::{Backend, Config, Counters, Features, FileCarrier, FileDemand, SpinRule, Wait};
pub use op::{Completion, FileRef, Op, Source};
pub use pool::{
    POOL_THREADS_KEPT, POOL_THREADS_SHARED, PoolShare, run_file_op, take_thread_refusal,
};
pub use reactor::{Handle, Reactor};
pub use sys::now_ns;

//! A light vhost-user-blk client without a virtual machine, for benchmarks and tests.
//!
//! Plays the guest's part: rings and buffers in shared memory, several queues. Called by
//! `millrace bench --connect vhost-user:SOCKET`.

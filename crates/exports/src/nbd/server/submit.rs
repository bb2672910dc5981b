//! Requests of an I/O thread at the block layer: their tickets, and the volumes that have them.
//!
//! A ticket (ticket.rs) is a request that was accepted; a lane (lane.rs) is a volume as its thread
//! sees it. Called by execute.rs and by the worker; calls the block layer.

pub(crate) mod lane;
pub(crate) mod ticket;

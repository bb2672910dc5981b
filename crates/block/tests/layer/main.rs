//! The block layer through its public interface, on drives made for tests: one program, because
//! linking a test program takes longer than most of these tests run.

#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

mod accounts;
mod allocation;
mod charges;
mod controller;
mod groups;
mod handed;
mod held;
mod histories;
mod inside;
mod lanes;
mod layer;
mod order;
mod owners;
mod promises;
mod request_lock;
mod resize;
mod serving;
mod simulated;
mod stuck;
mod support;
mod tracing;
mod workers;

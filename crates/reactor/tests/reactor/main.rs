//! The reactor through its public interface, on both back ends.

#![allow(clippy::print_stdout, clippy::unwrap_used, unsafe_code)]

mod common;
mod conformance;
mod edges;

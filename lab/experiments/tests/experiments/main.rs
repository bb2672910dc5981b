//! Experiments on simulated machines, and the explorer.

#![allow(missing_docs)]

mod explore;
mod serving;
mod simulated;

//! Memory of the simulated machine: cache lines, and the interconnect between CPUs.
//!
//! `line` tracks the CPUs that hold a line and computes the time of each access; `fabric` has the
//! distances and the links. The module depends on `model`; `world` and `primitives` call it for
//! each shared access.

pub(crate) mod fabric;
pub(crate) mod line;

//! Memory of the simulated machine: cache lines, and the way between CPUs that they take.
//!
//! `line` knows who holds a line and charges an access to it, `fabric` has the distances and the
//! links. Stands on `model`; called by `world` and `primitives` for each shared access.

pub(crate) mod fabric;
pub(crate) mod line;

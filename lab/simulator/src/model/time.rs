//! Units of virtual time.
//!
//! Leaf of the simulated machine: knows only the model's costs. Called by whatever counts time.

use crate::model::Cost;

/// Picoseconds, in which the simulation counts, in a nanosecond, in which its users do.
pub(crate) const PS_PER_NS: u64 = 1_000;
/// Where virtual time begins: programs may take a time of 0 for "none".
pub(crate) const BEGIN_PS: u64 = 1_000_000;

/// Picoseconds of a cost, rounded.
pub(crate) fn picoseconds(cost: &Cost) -> u64 {
    (cost.ns * PS_PER_NS as f64).round() as u64
}

//! Units of virtual time.
//!
//! All code that counts virtual time uses this module, which depends only on the model's costs.

use crate::model::Cost;

pub(crate) const PS_PER_NS: u64 = 1_000;
/// Virtual time at the start of a simulation. Not 0, because programs may use 0 for "no time".
pub(crate) const BEGIN_PS: u64 = 1_000_000;

pub(crate) fn picoseconds(cost: &Cost) -> u64 {
    (cost.ns * PS_PER_NS as f64).round() as u64
}

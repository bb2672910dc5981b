//! `Transfer`: costs of fetching a cache line from another CPU's cache, by the kind of access.
//!
//! A `Model` has a `Transfer` for each distance between two CPUs, such as two sockets of one board.
//! prices.rs converts the costs to picoseconds. The kinds of access are those in table 2 of David,
//! Guerraoui, Trigonakis, SOSP 2013.

use std::borrow::Cow;

/// Costs of fetching a cache line from a CPU at a certain distance, such as on another socket.
/// `origin` names the source of the costs.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Transfer {
    /// Cost of a load of a line that the other CPU has modified, in nanoseconds, 0 to 1e9. Also the
    /// default of `shared_ns` and `store_ns`.
    pub ns: f64,
    /// Cost of a load of a line that is shared or unmodified, in nanoseconds.
    #[cfg_attr(feature = "serde", serde(default))]
    pub shared_ns: Option<f64>,
    /// Cost of a store to a line, in nanoseconds.
    #[cfg_attr(feature = "serde", serde(default))]
    pub store_ns: Option<f64>,
    /// Cost of an atomic instruction on a line, in nanoseconds. By default, this is the cost of a
    /// store plus `cpu.locked`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub atomic_ns: Option<f64>,
    /// Publication, measurement or reasoning that the costs are taken from.
    pub origin: Cow<'static, str>,
}

impl Transfer {
    /// Creates a transfer with the same cost for every kind of access.
    #[must_use]
    pub const fn new(ns: f64, origin: &'static str) -> Self {
        let origin = Cow::Borrowed(origin);
        Transfer { ns, shared_ns: None, store_ns: None, atomic_ns: None, origin }
    }

    /// Multiplies all costs of the transfer by a factor.
    pub fn scale(&mut self, factor: f64) {
        self.ns *= factor;
        let more = [&mut self.shared_ns, &mut self.store_ns, &mut self.atomic_ns];
        more.into_iter().flatten().for_each(|ns| *ns *= factor);
    }

    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("ns", Some(self.ns)),
            ("shared_ns", self.shared_ns),
            ("store_ns", self.store_ns),
            ("atomic_ns", self.atomic_ns),
        ];
        all.into_iter().filter_map(|(key, ns)| Some((key, ns?)))
    }
}

//! `Transfer`: what it costs to get a cache line from another CPU's cache, by what it is got for.
//!
//! Part of a `Model`, one for each distance; prices.rs has it in picoseconds. Source of the
//! distinctions: David, Guerraoui, Trigonakis, SOSP 2013, table 2.

use std::borrow::Cow;

/// Costs of a line at one distance, and where they come from.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Transfer {
    /// A load of a line that the other CPU has modified, in nanoseconds, 0 to 1e9; and whatever is
    /// not given below.
    pub ns: f64,
    /// A load of a line that is shared there, or unchanged.
    #[cfg_attr(feature = "serde", serde(default))]
    pub shared_ns: Option<f64>,
    /// A store.
    #[cfg_attr(feature = "serde", serde(default))]
    pub store_ns: Option<f64>,
    /// An atomic instruction; a store and `cpu.locked` unless given.
    #[cfg_attr(feature = "serde", serde(default))]
    pub atomic_ns: Option<f64>,
    /// Publication, measurement or reasoning that they are taken from.
    pub origin: Cow<'static, str>,
}

impl Transfer {
    /// One cost, whatever the line is got for.
    #[must_use]
    pub const fn new(ns: f64, origin: &'static str) -> Self {
        let origin = Cow::Borrowed(origin);
        Transfer { ns, shared_ns: None, store_ns: None, atomic_ns: None, origin }
    }

    /// All of its costs times a factor.
    pub fn scale(&mut self, factor: f64) {
        self.ns *= factor;
        let more = [&mut self.shared_ns, &mut self.store_ns, &mut self.atomic_ns];
        more.into_iter().flatten().for_each(|ns| *ns *= factor);
    }

    /// The costs that are given, with their keys.
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

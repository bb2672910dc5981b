//! Baselines: other ways to serve a volume, for comparison.
//!
//! `volume_plug` is a single list of requests for all drives of a volume, as Linux's md has it;
//! `requests` is the channel's use of it.

pub(crate) mod requests;
pub(crate) mod volume_plug;

//! Baselines: other ways to serve a volume, for comparison.
//!
//! `volume_plug` is a single list of requests for all drives of a volume, as under Linux's md;
//! `requests` connects this list to the channel.

pub(crate) mod requests;
pub(crate) mod volume_plug;

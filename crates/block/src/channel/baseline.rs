//! Baselines: ways to serve a volume that the layer's own are measured against.
//!
//! `volume_plug` is one list of requests for all drives of a volume, as Linux's md has it;
//! `requests` is what a channel does with it.

pub(crate) mod requests;
pub(crate) mod volume_plug;

//! Baselines: ways to serve a volume that the layer's own are measured against.
//!
//! `volume_plug` is one list of requests for all drives of a volume, as Linux's md has it.

pub(crate) mod volume_plug;

//! Baselines: designs that the layer is measured against, each in a file of its own.
//!
//! `sq` is the single-queue design, whose lock `request_lock` makes as wide as it once was; `lanes`
//! lets several threads into one hardware queue, as the kernel does.

pub(crate) mod lanes;
pub(crate) mod request_lock;
pub(crate) mod sq;

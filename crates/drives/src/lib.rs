//! Drivers: what a drive's data is kept in, and the I/O threads that file drives need.
//!
//! `null` and later modelled drives are generic over the machine; `ram`, `file` and `fault` complete
//! the set. Drives are named by specs, `driver:key=value,...`. All data I/O of the project goes
//! through here and through the reactor below. Called by the `millrace` binary, exports and the lab.

mod io_context;
mod null;

pub use io_context::{IoConfig, IoContext, current_reactor};
pub use null::NullDriver;

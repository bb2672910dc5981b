//! `open_on`: opens drives that need no operating system, on a real or simulated machine.
//!
//! A row of the driver table opens drives on the real machine only, because it cannot be generic
//! over the `Machine`. So the drivers for all machines are listed here.

use millrace_block::{Driver, Error, ErrorKind};
use millrace_machine::Machine;

use crate::model::{self, ModelDriver};
use crate::null;
use crate::ram::{self, RamDriver};
use crate::spec::{Spec, SpecError};

/// Opens the drive of a spec on a real or simulated machine. Supports `null`, `ram` and `model`,
/// which need no operating system.
///
/// # Errors
/// Fails as [`crate::open`] does. Returns `Open` with `InvalidSetting` for other drivers.
pub fn open_on<M: Machine>(spec: &Spec) -> Result<Box<dyn Driver<M>>, SpecError> {
    let spec = &Spec::from_pairs(&spec.driver, spec.options.iter().cloned())?;
    match spec.driver.as_str() {
        "null" => Ok(Box::new(null::settings_of(spec)?)),
        "ram" => Ok(Box::new(RamDriver::new(ram::settings_of(spec)?)?)),
        "model" => Ok(Box::new(ModelDriver::new(model::config_of(spec)?)?)),
        other => {
            let text =
                format!("drive {other} cannot run on a simulated machine; use null, ram or model");
            Err(Error::new(ErrorKind::InvalidSetting, text).into())
        }
    }
}

//! `DeviceNames`: the names of a trace's devices and their numbers.
//!
//! The size is bounded: a trace with more than `DEVICES_MAX` devices is refused. Names come from
//! the trace and may contain terminal control sequences, so control characters are escaped here.

use std::collections::HashMap;

pub(super) const DEVICES_MAX: usize = 65_536;
const NAME_BYTES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct DeviceNames {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl DeviceNames {
    pub(super) fn number(&mut self, name: &str) -> Result<u32, String> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(format!(
                "a device's name has {} bytes; at most {NAME_BYTES_MAX} are allowed",
                name.len()
            ));
        }
        if self.names.len() == DEVICES_MAX {
            return Err(format!("more than {DEVICES_MAX} devices; split the trace by device"));
        }
        let number = self.names.len() as u32;
        self.names.push(printable(name));
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

fn printable(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter.is_control() {
            true => out.extend(letter.escape_debug()),
            false => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_to_be_printed_and_stay_apart() {
        let mut devices = DeviceNames::default();
        assert_eq!(devices.number("usr_0"), Ok(0));
        assert_eq!(devices.number("\u{1b}[2Jx_0"), Ok(1));
        assert_eq!(devices.number("\u{1b}[2Jx_0"), Ok(1));
        assert_eq!(devices.names(), ["usr_0", "\\u{1b}[2Jx_0"]);
    }
}

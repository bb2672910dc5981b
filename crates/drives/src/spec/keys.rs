//! Parses and checks the values of a spec's keys.
//!
//! Errors name the driver and the key, with a hint.

use std::ops::Range;
use std::time::Duration;

use super::{Spec, SpecError};
use crate::common::units::{duration, size_bytes};
use crate::common::words::any_of;

/// Maximum time that a key accepts: an hour, so that sums never overflow.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// Value of a key; `None` if the spec does not give the key.
type KeyResult<T> = Result<Option<T>, SpecError>;

impl Spec {
    pub(crate) fn missing(&self, key: &'static str) -> SpecError {
        SpecError::MissingKey { driver: self.driver.clone(), key }
    }

    pub(crate) fn invalid(&self, key: &str, expected: &str) -> SpecError {
        SpecError::InvalidValue {
            driver: self.driver.clone(),
            key: key.into(),
            value: self.get(key).unwrap_or_default().into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn value<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        expected: &str,
    ) -> KeyResult<T> {
        self.read(key, |text| parse(text).ok_or_else(|| expected.to_owned()))
    }

    pub(crate) fn read<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> KeyResult<T> {
        let parsed = self.get(key).map(parse).transpose();
        parsed.map_err(|expected| self.invalid(key, &expected))
    }

    pub(crate) fn size(&self, key: &str) -> KeyResult<u64> {
        self.read(key, |text| match size_bytes(text)? {
            bytes if bytes > 0 && bytes.is_multiple_of(512) => Ok(bytes),
            bytes => {
                let next = bytes.max(1).checked_next_multiple_of(512).unwrap_or(1 << 62);
                Err(format!("a size is a multiple of 512 bytes; write {next}, for example"))
            }
        })
    }

    pub(crate) fn time(&self, key: &str) -> KeyResult<Duration> {
        self.read(key, |text| match duration(text)? {
            time if time <= TIME_MAX => Ok(time),
            _ => Err("write a time up to 1h, such as 10us".to_owned()),
        })
    }

    pub(crate) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> KeyResult<T> {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let parse = |text: &str| choices.iter().find(|(word, _)| *word == text).map(|one| one.1);
        self.value(key, parse, &format!("write {}", any_of(&words)))
    }

    pub(crate) fn switch(&self, key: &str) -> KeyResult<bool> {
        let parse = |text: &str| match text {
            "on" | "true" | "yes" | "1" => Some(true),
            "off" | "false" | "no" | "0" => Some(false),
            _ => None,
        };
        self.value(key, parse, "write on or off")
    }

    pub(crate) fn number<T: TryFrom<u64>>(&self, key: &str, most: u64) -> KeyResult<T> {
        let parse = |text: &str| {
            let number = text.parse::<u64>().ok().filter(|n| (1..=most).contains(n));
            number.and_then(|number| T::try_from(number).ok())
        };
        self.value(key, parse, &format!("write a number from 1 to {most}"))
    }

    pub(crate) fn fraction(&self, key: &str) -> KeyResult<f64> {
        let parse = |text: &str| text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        self.value(key, parse, "write a number from 0 to 1")
    }

    pub(crate) fn seed(&self) -> KeyResult<u64> {
        self.value("seed", |text| text.parse().ok(), "write a number")
    }

    pub(crate) fn byte_range(&self, key: &str) -> KeyResult<Range<u64>> {
        self.value(key, byte_range, "write START-END in bytes, as in 1m-2m")
    }

    /// Returns the first key in `keys` that the spec contains. `keys` is a list separated by
    /// spaces.
    pub(crate) fn first_of(&self, keys: &'static str) -> Option<&'static str> {
        keys.split(' ').find(|key| self.get(key).is_some())
    }

    pub(crate) fn depth(&self) -> KeyResult<u32> {
        self.number("depth", 65_536)
    }

    pub(crate) fn block(&self) -> KeyResult<u32> {
        self.read("block", |text| match u32::try_from(size_bytes(text)?) {
            Ok(bytes) if bytes.is_power_of_two() && (512..=65_536).contains(&bytes) => Ok(bytes),
            _ => Err("write a power of two from 512 to 64k".to_owned()),
        })
    }
}

/// Parses `START-END` in bytes, each with an optional suffix. The end is exclusive.
fn byte_range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once('-')?;
    let range = size_bytes(start).ok()?..size_bytes(end).ok()?;
    (range.start < range.end).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_that_is_empty_or_backwards_is_none() {
        assert_eq!(byte_range("4k-1m"), Some(4096..1 << 20));
        assert_eq!(byte_range("4k-4k"), None);
        assert_eq!(byte_range("4k"), None);
    }
}

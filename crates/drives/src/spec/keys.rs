//! Values of a spec's keys: parsed, checked, and refused with the driver, the key and a hint.
//!
//! Kinds of values that several drivers have; `None` stands for a key that the spec does not give.
//! Called by open.rs and by drivers that read their own keys.

use super::{Spec, SpecError};
use crate::common::values::{size_bytes, switch, time_ns};

/// Longest time that a key takes, an hour: sums of such times never overflow.
const TIME_NS_MAX: u64 = 3_600_000_000_000;

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
    ) -> Result<Option<T>, SpecError> {
        let Some(text) = self.get(key) else { return Ok(None) };
        parse(text).map(Some).ok_or_else(|| self.invalid(key, expected))
    }

    pub(crate) fn size(&self, key: &str) -> Result<Option<u64>, SpecError> {
        let sectors = |text: &str| size_bytes(text).filter(|n| *n > 0 && n.is_multiple_of(512));
        self.value(key, sectors, "write bytes with k, m, g or t, a multiple of 512, as in 4g")
    }

    pub(crate) fn time(&self, key: &str) -> Result<Option<u64>, SpecError> {
        let within = |text: &str| time_ns(text).filter(|time_ns| *time_ns <= TIME_NS_MAX);
        self.value(key, within, "write a time with ns, us, ms, s, m or h, up to 1h, as in 10us")
    }

    pub(crate) fn switch(&self, key: &str) -> Result<Option<bool>, SpecError> {
        self.value(key, switch, "write on or off")
    }

    pub(crate) fn number<T: TryFrom<u64>>(
        &self,
        key: &str,
        most: u64,
    ) -> Result<Option<T>, SpecError> {
        let parse = |text: &str| {
            let number = text.parse::<u64>().ok().filter(|n| (1..=most).contains(n));
            number.and_then(|number| T::try_from(number).ok())
        };
        self.value(key, parse, &format!("write a number from 1 to {most}"))
    }

    pub(crate) fn depth(&self) -> Result<Option<u32>, SpecError> {
        self.number("depth", 65_536)
    }

    pub(crate) fn block(&self) -> Result<Option<u32>, SpecError> {
        let parse = |text: &str| {
            let bytes = u32::try_from(size_bytes(text)?).ok()?;
            (bytes.is_power_of_two() && (512..=65_536).contains(&bytes)).then_some(bytes)
        };
        self.value("block", parse, "write a power of two from 512 to 64k")
    }
}

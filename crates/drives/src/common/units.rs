//! Parses and prints sizes, byte rates, counts and times. The whole project uses this one grammar.
//!
//! An error says which rule the text breaks and shows a valid text; callers prepend the key and the
//! value. `size_text`, `count_text` and `duration_text` print texts that parse back to the same
//! number.
//! fio's job files have a grammar of their own, in the laboratory.

use std::time::Duration;

use millrace_machine::nanoseconds;

const SECOND_NS: u64 = 1_000_000_000;

struct SpecQuantity {
    form: &'static str,
    /// Part of the error message for a number with a fraction, such as "a whole number of bytes".
    whole: &'static str,
    unit: &'static str,
    large: &'static str,
}

const SIZE: SpecQuantity = SpecQuantity {
    form: "a size is bytes, or a number with k, m, g, t or KiB, MiB, GiB, TiB (powers of 1024), or \
           with kB, MB, GB, TB (powers of 1000); write 4096, 64k or 10MB",
    whole: "a whole number of bytes",
    unit: "",
    large: "1t",
};

const COUNT: SpecQuantity = SpecQuantity {
    form: "a count is a number, or one with k or m (powers of 1000); write 500, 20k or 1m",
    whole: "a whole number",
    unit: "",
    large: "1m",
};

const TIME: SpecQuantity = SpecQuantity {
    form: "a time is numbers with h, m, s, ms, us or ns; write 10s, 1.5ms or 1m30s",
    whole: "a whole number of nanoseconds",
    unit: "ns",
    large: "10s",
};

/// Parses a size in bytes: `4096`, `1.5g`, `64KiB`, `10MB`. `k`, `m`, `g`, `t` and `p` are powers
/// of 1024, as are `KiB` to `PiB`; `kB` to `PB` are powers of 1000.
///
/// # Errors
/// Returns a text that says how to write the value.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = number_and_unit(text.trim());
    match unit_bytes(unit) {
        Some(bytes) => scaled(digits, bytes, &SIZE),
        // A unit such as `mb` is refused as ambiguous: it may be meant as MB, as MiB, or even as
        // megabits.
        None if unit_bytes(&unit.replace('b', "B")).is_some() => {
            let letter = unit[..1].to_ascii_uppercase();
            Err(format!(
                "the B of bytes is a capital; write {digits}{letter}B (powers of 1000) or \
                 {digits}{letter}iB (powers of 1024)"
            ))
        }
        None => Err(SIZE.form.to_owned()),
    }
}

/// Parses a rate in bytes per second: a size, optionally followed by `/s`.
///
/// # Errors
/// Returns a text that says how to write the value.
pub fn rate_bytes_per_s(text: &str) -> Result<u64, String> {
    let text = text.trim();
    size_bytes(text.strip_suffix("/s").unwrap_or(text))
}

/// Parses a count, such as I/Os per second: `500`, `20k`, `1.5m`. `k` and `m` are powers of 1000.
///
/// # Errors
/// Returns a text that says how to write the value.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, unit) = number_and_unit(text.trim());
    let power = match unit {
        "" => 0,
        "k" | "K" => 1,
        "m" | "M" => 2,
        _ => return Err(COUNT.form.to_owned()),
    };
    scaled(digits, 1_000u64.pow(power), &COUNT)
}

/// Parses a time: `250ns`, `1.5s`, `1m30s`, `2h`. The unit is required, except for 0.
///
/// # Errors
/// Returns a text that says how to write the value.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (text, duration) = (text.trim(), duration_or_seconds(text)?);
    match text != "0" && is_number(text) {
        true => Err(format!("a time needs its unit; write {text}s")),
        false => Ok(duration),
    }
}

/// Parses a time as [`duration`] does, but a number without a unit is in seconds.
///
/// # Errors
/// Returns a text that says how to write the value.
pub fn duration_or_seconds(text: &str) -> Result<Duration, String> {
    let rest = text.trim();
    let ns = if is_number(rest) { scaled(rest, SECOND_NS, &TIME)? } else { sum_of_units_ns(rest)? };
    Ok(Duration::from_nanos(ns))
}

/// Adds up numbers that each have a unit, such as `1m30s`.
fn sum_of_units_ns(mut rest: &str) -> Result<u64, String> {
    let mut units = UNITS_OF_TIMES.iter();
    let mut sum_ns = 0u64;
    loop {
        let (digits, behind) = number_and_unit(rest);
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, after) = behind.split_at(end);
        let Some((_, unit_ns)) = units.find(|(name, _)| *name == unit) else {
            let text = match UNITS_OF_TIMES.iter().any(|(name, _)| *name == unit) {
                true => "write the units of a time from large to small, each once, as in 1m30s",
                false => TIME.form,
            };
            return Err(text.to_owned());
        };
        let sum = sum_ns.checked_add(scaled(digits, *unit_ns, &TIME)?);
        sum_ns = sum.ok_or_else(|| TIME.too_large())?;
        if after.is_empty() {
            return Ok(sum_ns);
        }
        rest = after;
    }
}

const UNITS_OF_TIMES: [(&str, u64); 6] = [
    ("h", 3_600 * SECOND_NS),
    ("m", 60 * SECOND_NS),
    ("s", SECOND_NS),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Returns a size in its shortest exact form, such as `64k`.
pub fn size_text(bytes: u64) -> String {
    text(bytes, &[("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)])
}

/// Returns a count in its shortest exact form, such as `20k`.
pub fn count_text(count: u64) -> String {
    text(count, &[("m", 1_000_000), ("k", 1_000)])
}

/// Returns a time in its shortest exact form, such as `90s`.
pub fn duration_text(duration: Duration) -> String {
    text(nanoseconds(duration), &UNITS_OF_TIMES)
}

fn text(number: u64, units: &[(&str, u64)]) -> String {
    let fits = |(_, unit): &&(&str, u64)| number > 0 && number.is_multiple_of(*unit);
    let unit = units.iter().find(fits);
    unit.map_or_else(|| number.to_string(), |(name, unit)| format!("{}{name}", number / unit))
}

fn unit_bytes(unit: &str) -> Option<u64> {
    if matches!(unit, "" | "b" | "B") {
        return Some(1);
    }
    let letter = unit.chars().next()?.to_ascii_lowercase();
    let power = "kmgtp".find(letter)? as u32 + 1;
    match &unit[1..] {
        "" | "iB" => Some(1 << (10 * power)),
        "B" => Some(1_000u64.pow(power)),
        _ => None,
    }
}

fn number_and_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && number_and_unit(text).1.is_empty()
}

/// Multiplies a decimal number by a unit. The result must be a whole number.
fn scaled(digits: &str, unit: u64, quantity: &SpecQuantity) -> Result<u64, String> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(quantity.form.to_owned());
    }
    let too_large = || quantity.too_large();
    let base = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit));
    let base = base.ok_or_else(too_large)?;
    // A number with more than eighteen decimals is never a whole number of bytes or nanoseconds,
    // unless the further decimals are zeroes.
    let fraction = fraction.trim_end_matches('0');
    let kept = &fraction[..fraction.len().min(18)];
    let parts = u128::from(kept.parse::<u64>().unwrap_or(0)) * u128::from(unit);
    let scale = 10u128.pow(kept.len() as u32);
    let sum = base.checked_add((parts / scale) as u64).ok_or_else(too_large)?;
    if kept == fraction && parts % scale == 0 {
        return Ok(sum);
    }
    let SpecQuantity { whole, unit, .. } = quantity;
    Err(format!("the value is not {whole}; write {}{unit}", sum.max(1)))
}

impl SpecQuantity {
    fn too_large(&self) -> String {
        format!("the number does not fit in 64 bits; write a smaller one, such as {}", self.large)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = SECOND_NS;

    #[test]
    fn sizes_with_and_without_the_i_differ() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("64k", 65_536),
            ("64K", 65_536),
            ("1.5g", 3 << 29),
            ("1GiB", 1 << 30),
            ("1giB", 1 << 30),
            ("10MB", 10_000_000),
            ("10mB", 10_000_000),
            ("10m", 10 << 20),
            ("1.000t", 1 << 40),
            ("1.5kB", 1_500),
            ("2p", 2 << 50),
            ("16383p", 16_383 << 50),
            (" 8k ", 8192),
        ] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
        assert_eq!(rate_bytes_per_s("100m"), Ok(100 << 20));
        assert_eq!(rate_bytes_per_s("2.5GB/s"), Ok(2_500_000_000));
        assert_eq!(rate_bytes_per_s("64KiB/s"), Ok(65_536));
    }

    #[test]
    fn texts_that_are_no_size_are_answered_with_one_that_is() {
        for text in ["", "g", "-1", "1x", "1kk", "4 g", "1.", ".5k", "1.2.3k", "\u{fc}", "1/s"] {
            assert_eq!(size_bytes(text).unwrap_err(), SIZE.form, "{text}");
        }
        for (text, error) in [
            ("1.3", "the value is not a whole number of bytes; write 1"),
            ("1.3k", "the value is not a whole number of bytes; write 1331"),
            ("1.00000000000000000001k", "the value is not a whole number of bytes; write 1024"),
            ("16384p", "the number does not fit in 64 bits; write a smaller one, such as 1t"),
            (
                "99999999999999999999",
                "the number does not fit in 64 bits; write a smaller one, such as 1t",
            ),
            (
                "10mb",
                "the B of bytes is a capital; write 10MB (powers of 1000) or 10MiB (powers of 1024)",
            ),
            (
                "1Gib",
                "the B of bytes is a capital; write 1GB (powers of 1000) or 1GiB (powers of 1024)",
            ),
        ] {
            assert_eq!(size_bytes(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn counts_are_powers_of_1000() {
        for (text, number) in [("500", 500), ("20k", 20_000), ("1M", 1_000_000), ("1.5k", 1_500)] {
            assert_eq!(count(text), Ok(number), "{text}");
        }
        for text in ["", "k", "1MB", "1g", "-1", "1e3"] {
            assert_eq!(count(text).unwrap_err(), COUNT.form, "{text}");
        }
        assert_eq!(count("0.5").unwrap_err(), "the value is not a whole number; write 1");
    }

    #[test]
    fn times_have_units_that_fall() {
        for (text, ns) in [
            ("0", 0),
            ("0h", 0),
            ("250ns", 250),
            ("100us", 100_000),
            ("0.5s", SECOND / 2),
            ("1m30s", 90 * SECOND),
            ("2h", 7_200 * SECOND),
            ("1h0.5s250ns", 3_600 * SECOND + SECOND / 2 + 250),
        ] {
            let time = Ok(Duration::from_nanos(ns));
            assert_eq!((duration(text), duration_or_seconds(text)), (time.clone(), time), "{text}");
        }
        for text in ["", "s", ".", "5x", "5min", "-1s", "1e3s", "1m 30s", "1m30", "5S", "1.2.3s"] {
            assert_eq!(duration(text).unwrap_err(), TIME.form, "{text}");
            assert_eq!(duration_or_seconds(text).unwrap_err(), TIME.form, "{text}");
        }
        let falls = "write the units of a time from large to small, each once, as in 1m30s";
        for (text, error) in [
            ("30s1m", falls),
            ("1s1s", falls),
            ("0.5ns", "the value is not a whole number of nanoseconds; write 1ns"),
            ("1.0000000005s", "the value is not a whole number of nanoseconds; write 1000000000ns"),
            ("5124096h", "the number does not fit in 64 bits; write a smaller one, such as 10s"),
            (
                "5124095h3600s",
                "the number does not fit in 64 bits; write a smaller one, such as 10s",
            ),
        ] {
            assert_eq!(duration(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn a_number_alone_is_seconds_for_flags_only() {
        for (text, ns) in [("5", 5 * SECOND), ("0.5", SECOND / 2)] {
            assert_eq!(duration_or_seconds(text), Ok(Duration::from_nanos(ns)));
            let error = format!("a time needs its unit; write {text}s");
            assert_eq!(duration(text).unwrap_err(), error);
        }
    }

    proptest! {
        #[test]
        fn texts_read_back_as_the_same_number(number: u64, shift in 0u32..64, factor: u16) {
            for number in [number >> shift, 1 << shift, u64::from(factor) * SECOND] {
                prop_assert_eq!(size_bytes(&size_text(number)), Ok(number));
                prop_assert_eq!(rate_bytes_per_s(&format!("{}/s", size_text(number))), Ok(number));
                prop_assert_eq!(count(&count_text(number)), Ok(number));
                let time = Duration::from_nanos(number);
                prop_assert_eq!(duration(&duration_text(time)), Ok(time));
            }
        }
    }
}

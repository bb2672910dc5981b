//! Parsers for the values in a job file: numbers with units, times, percentages, switches, and
//! lists with one value for each direction.
//!
//! The parsers are pure functions, and their errors say what to write instead. Units have the
//! meanings of fio 3.33, which contradict SI by default: with `kb_base=1024` (the default) `k`,
//! `kb` and `ki` are 1024 and `kib` is 1000; with `kb_base=1000`, `k`, `kb` and `ki` are 1000 and
//! `kib` is 1024. `words` and `draft` call the parsers.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Amount {
    Bytes(u64),
    Percent(f64),
}

/// Number of bytes in fio's units `k` and `kib`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Base {
    k: u64,
    kib: u64,
}

impl Base {
    /// Units with `kb_base=1024`, which is the default.
    pub(super) const BINARY: Base = Base { k: 1024, kib: 1000 };
    /// Units of `kb_base=1000`.
    pub(super) const DECIMAL: Base = Base { k: 1000, kib: 1024 };

    pub(super) fn number(self, text: &str) -> Result<u64, String> {
        let wrong = || format!("{text:?}: write a number such as 16, 4k or 1g");
        let lower = text.trim().to_ascii_lowercase();
        if let Some(digits) = lower.strip_prefix("0x") {
            return u64::from_str_radix(digits, 16).map_err(|_| wrong());
        }
        let unit_at = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
        let (digits, unit) = lower.split_at(unit_at);
        let unit = unit.trim();
        let power = match unit.chars().next() {
            None | Some('b') => 0,
            Some('k') => 1,
            Some('m') => 2,
            Some('g') => 3,
            Some('t') => 4,
            Some('p') => 5,
            Some(_) => return Err(wrong()),
        };
        let base = match unit.get(power.min(1)..) {
            Some("" | "b" | "i") if power > 0 => self.k,
            Some("ib") if power > 0 => self.kib,
            Some("" | "b") => 1,
            _ => return Err(wrong()),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let factor = base.checked_pow(power as u32);
        factor
            .and_then(|factor| number.checked_mul(factor))
            .ok_or_else(|| format!("{text:?} does not fit in 64 bits; write a smaller number"))
    }

    pub(super) fn amount(self, text: &str, percent_max: f64) -> Result<Amount, String> {
        match text.trim().strip_suffix('%') {
            Some(share) => match share.trim().parse::<f64>() {
                Ok(share) if (0.0..=percent_max).contains(&share) => Ok(Amount::Percent(share)),
                _ => Err(format!("{text:?}: a share is 0% to {percent_max}%")),
            },
            None => self.number(text).map(Amount::Bytes),
        }
    }

    /// Parses a range such as `4k-16k` or `4k:16k`, and returns the lower end first. A single
    /// number is both ends.
    pub(super) fn range(self, text: &str) -> Result<(u64, u64), String> {
        let (first, last) = text.split_once(['-', ':']).unwrap_or((text, text));
        let (first, last) = (self.number(first)?, self.number(last)?);
        Ok((first.min(last), first.max(last)))
    }
}

impl Amount {
    pub(super) fn of(self, whole: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(share) => (whole as f64 * share / 100.0) as u64,
        }
    }
}

/// Parses a time and returns nanoseconds. A number without a unit is in units of `unit_ns`.
pub(super) fn time_ns(text: &str, unit_ns: u64) -> Result<u64, String> {
    const UNITS: [(&str, u64); 11] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("sec", 1_000_000_000),
        ("ms", 1_000_000),
        ("msec", 1_000_000),
        ("us", 1_000),
        ("usec", 1_000),
        ("ns", 1),
        ("nsec", 1),
    ];
    let wrong = || format!("{text:?}: write a time such as 10, 500ms or 2m");
    let lower = text.trim().to_ascii_lowercase();
    let unit_at = lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len());
    let (digits, unit) = lower.split_at(unit_at);
    let unit_ns = match unit {
        "" => unit_ns,
        unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    match number.checked_mul(unit_ns) {
        Some(time_ns) if time_ns < 1 << 62 => Ok(time_ns),
        _ => Err(format!("{text:?}: more than a hundred years")),
    }
}

pub(super) fn float(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| format!("{text:?}: write a number such as 1.2"))
}

/// Parses a boolean; an empty value means true.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("{text:?}: write 1 or 0")),
    }
}

pub(super) fn whole(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = Base::BINARY.number(text)?;
    match (least..=most).contains(&number) {
        true => Ok(number),
        false => Err(format!("{text:?}: write {least} to {most}")),
    }
}

/// Parses a comma-separated list of values for reads, writes and trims. The last value also applies
/// to the directions after it. An empty value gives `None`.
pub(super) fn each<T: Clone>(
    text: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<[Option<T>; 3], String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > 3 {
        return Err(format!("{text:?}: three values at most, for reads, writes and trims"));
    }
    let mut values = [None, None, None];
    for (place, value) in values.iter_mut().enumerate() {
        let part = parts.get(place).or(parts.last()).filter(|part| !part.is_empty());
        *value = part.map(|part| read(part)).transpose()?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_fio() {
        for (text, binary, decimal) in [
            ("0", 0, 0),
            ("100k", 102_400, 100_000),
            ("100kB", 102_400, 100_000),
            ("100ki", 102_400, 100_000),
            ("100KiB", 100_000, 102_400),
            ("0x10000", 65_536, 65_536),
            ("512b", 512, 512),
            ("3 m", 3 << 20, 3_000_000),
            ("2G", 2 << 30, 2_000_000_000),
        ] {
            assert_eq!(Base::BINARY.number(text), Ok(binary), "{text}");
            assert_eq!(Base::DECIMAL.number(text), Ok(decimal), "{text}");
        }
        for text in
            ["", "k", "-1", "4x", "4kk", "4kibs", "1.5k", "0x", "20000000t", "4\u{fc}", "bb"]
        {
            assert!(Base::BINARY.number(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_shares_and_ranges_are_read() {
        assert_eq!(time_ns("10", 1_000), Ok(10_000));
        assert_eq!(time_ns("2M", 1), Ok(120_000_000_000));
        assert!(time_ns("99999999d", 1).is_err() && time_ns("s", 1).is_err());
        assert_eq!(Base::BINARY.amount("25%", 100.0).map(|part| part.of(1000)), Ok(250));
        assert!(Base::BINARY.amount("101%", 100.0).is_err());
        assert!(Base::BINARY.amount("nan%", 1000.0).is_err());
        assert_eq!(Base::BINARY.range("16k-4k"), Ok((4096, 16_384)));
        assert_eq!((switch(""), switch("0")), (Ok(true), Ok(false)));
    }

    #[test]
    fn a_value_without_a_comma_is_for_all_behind_it() {
        let each = |text| each(text, |part| Base::BINARY.number(part));
        assert_eq!(each("8k"), Ok([Some(8192); 3]));
        assert_eq!(each("8k,4k"), Ok([Some(8192), Some(4096), Some(4096)]));
        assert_eq!(each("8k,4k,"), Ok([Some(8192), Some(4096), None]));
        assert_eq!(each(",4k"), Ok([None, Some(4096), Some(4096)]));
        assert!(each("1,2,3,4").is_err());
    }
}

//! Words of a configuration and of flags: sizes, times, numbers, names of designs.
//!
//! Pure functions from a text to a value or to what is wrong with it and what to write instead, and
//! from a value to its text. Called by the verbs and by the daemon's configuration.

use std::ops::RangeInclusive;
use std::time::Duration;

use millrace::{SchedulerKind, Stack, Words};

/// A second in nanoseconds.
pub const SECOND_NS: u64 = 1_000_000_000;
/// A millisecond in nanoseconds.
pub const MILLISECOND_NS: u64 = 1_000_000;

/// A size in bytes: a number with k, m, g or t (powers of 1024) after it, or without.
///
/// # Errors
/// What to write instead.
pub fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, shift) = match lower.char_indices().next_back() {
        Some((at, 'k')) => (&lower[..at], 10),
        Some((at, 'm')) => (&lower[..at], 20),
        Some((at, 'g')) => (&lower[..at], 30),
        Some((at, 't')) => (&lower[..at], 40),
        _ => (&lower[..], 0),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| "not a size; write bytes, or a number with k, m, g or t: 64k, 1g".to_owned())
}

/// A time in nanoseconds: a number with ns, us, ms, s, m or h after it; 0 needs none. More than can
/// be counted is the most that can.
///
/// # Errors
/// What to write instead.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    let wrong = || "not a time; write a number with ns, us, ms, s, m or h: 500ms, 30s".to_owned();
    let text = text.trim();
    if text == "0" {
        return Ok(0);
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let unit_ns: u64 = match &text[unit_at..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => MILLISECOND_NS,
        "s" => SECOND_NS,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(wrong()),
    };
    let digits = &text[..unit_at];
    if digits.is_empty() {
        return Err(wrong());
    }
    // Whatever is too long to be counted is longer than any range allows.
    let number: u64 = digits.parse().unwrap_or(u64::MAX);
    Ok(number.saturating_mul(unit_ns))
}

/// A time on the command line: a bare number is seconds, as in fio; others have a unit.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let wrong = || "write a time: 5 (seconds), 500ms or 2m".to_owned();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = if unit.is_empty() { "s" } else { unit };
    let unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if time.is_zero() || seconds > 1e8 { Err(wrong()) } else { Ok(time) }
}

/// A whole number from `min` to `max`.
///
/// # Errors
/// What to write instead.
pub fn number(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let value: Option<u32> = text.trim().parse().ok();
    let within = value.filter(|value| (min..=max).contains(value));
    within.ok_or_else(|| format!("write a whole number from {min} to {max}"))
}

/// What reads a flag's whole number within a range.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = text.parse().ok().filter(|value| range.contains(value));
        let value = value.and_then(|value| T::try_from(value).ok());
        value.ok_or_else(|| match (range.start(), range.end()) {
            (min, &u64::MAX) => format!("write a whole number from {min}"),
            (min, max) => format!("write a whole number from {min} to {max}"),
        })
    }
}

/// The value of a word of a setting, for the command line.
///
/// # Errors
/// All words, if it is none of them.
pub fn word<T: Words>(text: &str) -> Result<T, String> {
    let names: Vec<&str> = T::WORDS.iter().map(|(_, name)| *name).collect();
    T::from_word(text).ok_or_else(|| format!("one of {}", names.join(", ")))
}

/// Numbers in order, with runs as ranges: `0-3,8`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The design of a drive's queues in words: `mq`, or `mq/deadline` with a scheduler.
pub fn design(stack: Stack, scheduler: SchedulerKind) -> String {
    match scheduler {
        SchedulerKind::None => stack.word().to_owned(),
        scheduler => format!("{}/{}", stack.word(), scheduler.word()),
    }
}

/// Bytes for people: the largest unit that leaves no fraction, or one decimal.
pub fn bytes_for_people(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) if bytes.is_multiple_of(1 << shift) => {
            format!("{} {unit}", bytes >> shift)
        }
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// The known word that is most like `word`, as `; did you mean "x"?`, or the empty text.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = millrace::nearest(word, known);
    near.map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!((size("64k"), size("3"), size("1T")), (Ok(65_536), Ok(3), Ok(1 << 40)));
        assert!(size("64kk").is_err() && size("").is_err() && size("99999999999t").is_err());
        assert_eq!(duration_ns("500ms"), Ok(500_000_000));
        assert!(duration_ns("5").is_err() && duration_ns("s").is_err());
        assert_eq!(duration_ns("99999999999999999999s"), Ok(u64::MAX));
    }

    #[test]
    fn runs_of_numbers_are_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn a_number_of_a_flag_says_what_to_write() {
        assert_eq!(whole::<u16>(1..=9)("9"), Ok(9));
        assert_eq!(whole::<u16>(1..=9)("0").unwrap_err(), "write a whole number from 1 to 9");
        assert_eq!(whole::<u64>(1..=u64::MAX)("x").unwrap_err(), "write a whole number from 1");
    }

    #[test]
    fn a_bare_number_is_seconds_as_in_fio() {
        for (text, ms) in
            [("5", 5_000), ("0.5", 500), ("3s", 3_000), ("500ms", 500), ("2m", 120_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "0", ".", "5x", "-1", "1.2.3", "s", "1e3", "inf", "99999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_word_that_is_like_none_names_none() {
        assert_eq!(nearest("chnk", ["name", "chunk"]), "; did you mean \"chunk\"?");
        assert_eq!(nearest("zzz", ["name", "chunk"]), "");
    }
}

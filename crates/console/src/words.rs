//! Grammar of settings and flags: sizes, times, numbers and fixed sets of words.
//!
//! Pure functions that parse a text into a value or an error, and format a value as text. An error
//! states the rule that the text breaks, and shows a valid text. Sizes, rates, counts and times are
//! written as in drive specs (millrace-drives).

use std::ops::RangeInclusive;
use std::time::Duration;

use millrace::{SchedulerKind, Stack, Words, unknown_word};
pub use millrace_drives::{
    count, count_text, duration as time, duration_text, rate_bytes_per_s, size_bytes as size,
    size_text,
};

/// A second in nanoseconds.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Bytes of a MiB, as a divisor for rates in reports.
pub const MIB: f64 = 1_048_576.0;

/// Parses a time above 0 and below three years from a flag, such as `5` (seconds), `500ms` or
/// `1m30s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(100_000_000);
    match millrace_drives::duration_or_seconds(text)? {
        time if !time.is_zero() && time <= LONGEST => Ok(time),
        _ => Err("write a time above 0 and below three years, such as 5s".to_owned()),
    }
}

/// Parses a whole number from `min` to `max`.
pub fn number(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let value: Option<u32> = text.trim().parse().ok();
    let within = value.filter(|value| (min..=max).contains(value));
    within.ok_or_else(|| format!("write a whole number from {min} to {max}"))
}

/// Returns a function that parses a flag's whole number within `range`.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = text.parse().ok().filter(|value| range.contains(value));
        let value = value.and_then(|value| T::try_from(value).ok());
        value.ok_or_else(|| match (range.start(), range.end()) {
            (min, &u64::MAX) => format!("write a whole number of at least {min}"),
            (min, max) => format!("write a whole number from {min} to {max}"),
        })
    }
}

/// Parses a word such as a scheduler's name. An error lists all possible words.
pub fn word<T: Words>(text: &str) -> Result<T, String> {
    let names: Vec<&str> = T::WORDS.iter().map(|(_, name)| *name).collect();
    T::from_word(text).ok_or_else(|| unknown_word(T::NOUN, text, &names))
}

/// Formats ascending numbers with runs as ranges, such as `0-3,8`.
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

/// Names the block layer design and the scheduler of a drive: `mq`, or `mq/deadline` with a
/// scheduler.
pub fn design(stack: Stack, scheduler: SchedulerKind) -> String {
    match scheduler {
        SchedulerKind::None => stack.word().to_owned(),
        scheduler => format!("{}/{}", stack.word(), scheduler.word()),
    }
}

/// Formats bytes in the largest unit that leaves no fraction, else with one decimal.
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

/// Returns `; did you mean "x"?` for the known word most similar to `word`, or an empty text.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = millrace::nearest(word, known);
    near.map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers_are_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn a_number_of_a_flag_says_what_to_write() {
        assert_eq!(whole::<u16>(1..=9)("9"), Ok(9));
        assert_eq!(whole::<u16>(1..=9)("0").unwrap_err(), "write a whole number from 1 to 9");
        assert_eq!(
            whole::<u64>(1..=u64::MAX)("x").unwrap_err(),
            "write a whole number of at least 1"
        );
    }

    #[test]
    fn a_time_of_a_flag_is_neither_0_nor_endless() {
        assert_eq!(duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for text in ["0", "0ms", "30000h"] {
            let error = "write a time above 0 and below three years, such as 5s";
            assert_eq!(duration(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn a_word_that_is_like_none_names_none() {
        assert_eq!(nearest("chnk", ["name", "chunk"]), "; did you mean \"chunk\"?");
        assert_eq!(nearest("zzz", ["name", "chunk"]), "");
    }
}
